"""The built-in platform of a device, by the name that its driver gives."""

from __future__ import annotations

from dse.errors import ConfigError

#: Part of the name, and the platform; the first that fits.
_BY_NAME = (
    ("H100 80GB HBM3", "h100_sxm"),
    ("H100 PCIe", "h100_pcie"),
    ("H100 NVL", "h100_nvl"),
    ("H200", "h200_sxm"),
    ("GB200", "gb200_nvl72"),
    ("GB300", "gb300_nvl72"),
    ("B200", "b200_sxm"),
    ("B300", "b300_sxm"),
    ("H20", "h20"),
    ("A100-SXM4-80GB", "a100_sxm_80"),
    ("A100-SXM4-40GB", "a100_sxm_40"),
    ("A100-PCIE", "a100_pcie"),
    ("A100 80GB PCIe", "a100_pcie"),
    ("L40S", "l40s_pcie"),
    ("V100-SXM2", "v100_dgx1"),
    ("V100-SXM3", "v100_dgx2"),
    ("P100-PCIE", "p100_pcie"),
    ("TITAN Xp", "titan_xp"),
    ("MI300X", "mi300x"),
)


def platform_of_device(device_name: str) -> str:
    """Returns the name of the built-in platform that has a device.

    Args:
        device_name: As `torch.cuda.get_device_name()` gives it.

    Raises:
        ConfigError: No built-in platform has it.
    """
    for part, platform in _BY_NAME:
        if part in device_name:
            return platform
    raise ConfigError(
        f"no built-in platform has a `{device_name}`; name a platform, or measure this machine "
        "with `dse calibrate --device cuda`"
    )
