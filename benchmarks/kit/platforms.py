"""The built-in platform of this machine's device."""

from __future__ import annotations

from dse.errors import ConfigError
from dse.machine.platforms import Platform, load_platform

#: What torch calls a GPU, and the platform that has it.
_BY_NAME = (
    ("H100 80GB HBM3", "h100_sxm"),
    ("H100 PCIe", "h100_pcie"),
    ("H100 NVL", "h100_nvl"),
    ("H200", "h200_sxm"),
    ("GB200", "gb200_nvl72"),
    ("B200", "b200_sxm"),
    ("A100-SXM4-80GB", "a100_sxm_80"),
    ("A100-SXM4-40GB", "a100_sxm_40"),
    ("A100-PCIE", "a100_pcie"),
    ("L40S", "l40s_pcie"),
    ("V100-SXM2", "v100_dgx1"),
)


def built_in(device: str, device_name: str) -> Platform:
    """Returns the platform of a device by the name that torch gives it.

    Raises:
        ConfigError: There is none.
    """
    if device == "cpu":
        return load_platform("cpu")
    for part, name in _BY_NAME:
        if part in device_name:
            return load_platform(name)
    raise ConfigError(f"no built-in platform has a `{device_name}`; name one by --platform")
