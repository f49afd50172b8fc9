"""Platforms by the names that drivers give their devices."""

from __future__ import annotations

import pytest

from dse.errors import ConfigError
from dse.machine.platforms import may_be_same_device, nearest_platform, platform_of_device

DEVICES = {
    "NVIDIA H100 80GB HBM3": "h100_sxm",
    "NVIDIA H100 PCIe": "h100_pcie",
    "NVIDIA H100 NVL": "h100_nvl",
    "NVIDIA H200": "h200_sxm",
    "NVIDIA GB200": "gb200_nvl72",
    "NVIDIA GB300": "gb300_nvl72",
    "NVIDIA B200": "b200_sxm",
    "NVIDIA B300 SXM6 AC": "b300_sxm",
    "NVIDIA H20": "h20",
    "NVIDIA A100-SXM4-80GB": "a100_sxm_80",
    "NVIDIA A100-SXM4-40GB": "a100_sxm_40",
    "NVIDIA A100-PCIE-40GB": "a100_pcie",
    "NVIDIA A100 80GB PCIe": "a100_pcie",
    "NVIDIA L40S": "l40s_pcie",
    "NVIDIA L40": "l40_pcie",
    "NVIDIA A40": "a40_pcie",
    "Tesla V100-SXM2-32GB": "v100_dgx1",
    "Tesla V100-SXM3-32GB": "v100_dgx2",
    "Tesla P100-PCIE-16GB": "p100_pcie",
    "NVIDIA TITAN Xp": "titan_xp",
    "AMD Instinct MI300X": "mi300x",
    "AMD Instinct MI325X": "mi325x",
    "AMD Instinct MI355X": "mi355x",
    "NVIDIA A10": "a10_pcie",
    "NVIDIA A10G": "a10g_pcie",
    "NVIDIA A800-SXM4-80GB": "a800_sxm_80",
    "NVIDIA H800": "h800_sxm",
    "NVIDIA L4": "l4_pcie",
    "NVIDIA RTX PRO 6000 Blackwell Server Edition": "rtx_pro_6000_pcie",
}


@pytest.mark.parametrize(("device", "platform"), DEVICES.items())
def test_a_device_has_its_platform(device, platform):
    assert platform_of_device(device).name == platform


@pytest.mark.parametrize(
    "device",
    [
        "NVIDIA RTX PRO 6000 Blackwell Workstation Edition",
        "NVIDIA GH200 480GB",
        "NVIDIA TITAN V",
        "AMD EPYC 9654",
        "",
    ],
)
def test_an_unknown_device_has_none(device):
    assert nearest_platform(device) is None
    with pytest.raises(ConfigError):
        platform_of_device(device)


def test_a_card_for_pcie_is_not_a_module():
    nearest = nearest_platform("Tesla V100-PCIE-16GB")
    assert nearest is not None
    assert nearest.name.startswith("v100")
    with pytest.raises(ConfigError):
        platform_of_device("Tesla V100-PCIE-16GB")


def test_the_node_holds_the_ranks_if_one_does():
    sizes = {ranks: nearest_platform("Tesla V100", ranks).devices_per_node for ranks in (8, 16)}
    assert sizes == {8: 8, 16: 16}


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("NVIDIA H100 80GB HBM3", "NVIDIA H100 SXM5 80 GB", True),
        ("NVIDIA A100-SXM4-40GB", "NVIDIA A100 SXM4 80 GB", False),
        ("NVIDIA TITAN Xp", "NVIDIA TITAN Xp 12 GB", True),
        ("NVIDIA H100 NVL", "NVIDIA H200 SXM 141 GB", False),
    ],
)
def test_names_of_one_device_may_differ(one, other, same):
    assert may_be_same_device(one, other) is same
