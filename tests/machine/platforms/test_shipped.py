"""What holds for every platform that is shipped."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import pytest

import dse
from dse.machine import LinkKind, Precision
from dse.machine.kernels import gemm_estimate
from dse.machine.platforms import builtin_calibrations, list_platforms, load_platform
from dse.workload.transformer import DataSharding
from tests.conftest import ROOT

if TYPE_CHECKING:
    from dse.sharding import ShardingPlan

PLATFORMS = list_platforms()
GPUS = [name for name in PLATFORMS if load_platform(name).device.kind == "gpu"]

#: From the widest to the narrowest arithmetic; a device is never slower in a narrower one.
BY_WIDTH = ("fp32", "tf32", "fp16", "fp8", "nvfp4")


@pytest.fixture(params=PLATFORMS)
def platform(request):
    return load_platform(request.param)


def test_narrower_arithmetic_is_never_slower(platform):
    peak = platform.document.device.peak.model_dump()
    rates = [peak[name] for name in BY_WIDTH if peak.get(name) is not None]
    assert rates == sorted(rates)
    if peak["bf16"] is not None:
        assert peak["bf16"] == pytest.approx(peak["fp16"], rel=0.1)


def test_links_are_wired_as_the_node_is(platform):
    assert platform.document.default_link in platform.document.links
    for link in platform.links:
        if link.kind is LinkKind.FULL_MESH:
            # A device has one link to every other device of its node.
            others = platform.devices_per_node - 1
            assert link.pair_bandwidth_bytes_per_s * others == link.bandwidth_bytes_per_s


def test_networks_are_named_by_kind_and_rate(platform):
    for name, block in platform.document.networks.items():
        if platform.device.kind == "cpu":
            continue
        assert name.startswith(block.kind)
        gigabits = 8e-9 * block.bandwidth
        stated = int("".join(filter(str.isdigit, name.rsplit("_", 1)[1])))
        # InfiniBand is named by the rate of a card, networks of clouds by that of a node.
        assert stated in (pytest.approx(gigabits), pytest.approx(gigabits * block.nics))


#: Memory that drivers report, in MiB: vendors write GB for what are GiB, but for cards with GDDR6.
REPORTED_MIB = {
    "a100_sxm_80": 81_920,
    "a10g_pcie": 23_028,
    "a40_pcie": 46_068,
    "b200_sxm": 183_359,
    "b300_sxm": 275_040,
    "gb200_nvl72": 189_471,
    "gb300_nvl72": 284_208,
    "h100_nvl": 95_830,
    "h100_sxm": 81_559,
    "h20": 97_871,
    "h200_sxm": 143_771,
    "l40s_pcie": 46_068,
    "l4_pcie": 23_034,
    "mi300x": 196_608,
    "rtx_pro_6000_pcie": 97_887,
}


@pytest.mark.parametrize(("name", "mib"), REPORTED_MIB.items())
def test_memory_is_what_drivers_report(name, mib):
    assert load_platform(name).device.memory_bytes == pytest.approx(mib * 2**20, rel=0.01)


@pytest.mark.parametrize("name", ["h20", "h800_sxm"])
def test_devices_without_a_public_datasheet_claim_none(name):
    assert "datasheet" not in {fact.origin for fact in load_platform(name).facts}


@lru_cache
def dlrm_s(name: str) -> float:
    ranks = min(4, load_platform(name).devices_per_node)
    job = dse.Job("dlrm_tiny", name, world_size=ranks, global_batch_size=1024 * ranks)
    return float(job.predict(plan_of(ranks)).iteration_time_s)


@lru_cache
def plan_of(ranks: int) -> ShardingPlan:
    """A plan that fits every device."""
    job = dse.Job("dlrm_tiny", "a100_sxm_80", world_size=ranks, global_batch_size=1024 * ranks)
    return job.shard(time_limit_s=0.5).plan


@pytest.mark.parametrize("name", PLATFORMS)
def test_a_recommendation_step_is_predicted(name):
    assert 0 < dlrm_s(name) < 10


@pytest.mark.parametrize("name", GPUS)
def test_a_transformer_step_is_predicted(name):
    job = dse.Job("gpt_1_7b", name, world_size=4, global_batch_size=4, tensor=4)
    predicted = job.predict()
    assert 0 < predicted.iteration_time_s < 100
    assert 0 < predicted.metric("model_flops_utilization") < 1


#: Kernels besides products that were measured on some devices, as their files end.
MEASURED_KERNELS = ("attention", "experts")


@pytest.mark.parametrize("name", GPUS)
def test_who_borrows_products_borrows_attention_and_experts(name):
    files = {entry.file for entry in load_platform(name).document.calibrations}
    lenders = {file.removesuffix("_gemm_bf16") for file in files if file.endswith("_gemm_bf16")}
    there = {f"{lender}_{kernel}" for lender in lenders for kernel in MEASURED_KERNELS}
    assert there & dict(builtin_calibrations()).keys() <= files


@lru_cache
def experts_step_s(name: str) -> float:
    job = dse.Job(
        "mixtral_8x7b",
        name,
        world_size=4,
        global_batch_size=16,
        expert=4,
        data_sharding=DataSharding.OPTIMIZER,
    )
    return float(job.predict().iteration_time_s)


#: Platforms of one chip: the second has at most the rates, memory, power and links of the first.
SLOWER_BOARDS = [
    ("a100_sxm_80", "a100_sxm_40"),
    ("a100_sxm_80", "a100_pcie"),
    ("a100_sxm_80", "a800_sxm_80"),
    ("h100_sxm", "h100_pcie"),
    ("h100_sxm", "h800_sxm"),
    ("h200_sxm", "h20"),
    ("l40s_pcie", "l40_pcie"),
]


@pytest.mark.parametrize(("faster", "slower"), SLOWER_BOARDS)
def test_experts_are_no_faster_on_a_slower_board(faster, slower):
    assert experts_step_s(slower) >= experts_step_s(faster)


def product_s(name: str) -> float:
    device = load_platform(name).device
    return float(gemm_estimate(device, 8192, 8192, 8192, Precision.BF16).time_s)


def stream_s(name: str) -> float:
    platform = load_platform(name)
    return float(platform.kernel_time("elementwise", traffic_bytes=np.array(4e9)))


def test_devices_compare_as_their_figures_do():
    # H20 has an eighth of the arithmetic of H200 and a sixth less bandwidth of the memory.
    assert 5 < product_s("h20") / product_s("h200_sxm") < 8
    assert 1.1 < stream_s("h20") / stream_s("h200_sxm") < 1.3
    assert stream_s("h20") < stream_s("h100_sxm")
    # H100 NVL is between the PCIe card and the SXM module.
    assert product_s("h100_sxm") < product_s("h100_nvl") < product_s("h100_pcie")
    # Clocks of MI300X fall under products; its memory does not.
    assert stream_s("mi300x") < stream_s("h200_sxm") < 1.3 * stream_s("mi300x")
    assert product_s("h100_sxm") < 1.1 * product_s("mi300x")
    # MI325X keeps higher clocks than MI300X, MI355X has another generation's matrix cores.
    assert product_s("mi355x") < product_s("mi325x") < product_s("mi300x")
    assert stream_s("mi355x") < stream_s("mi325x") < stream_s("mi300x")
    # A800 and H800 are an A100 and an H100 with fewer links.
    assert product_s("a800_sxm_80") == product_s("a100_sxm_80")
    assert product_s("h800_sxm") == product_s("h100_sxm")
    # A10G has tensor cores of half the rate of A10, and as much memory bandwidth.
    assert 1.6 < product_s("a10g_pcie") / product_s("a10_pcie") < 2
    assert stream_s("a10g_pcie") == stream_s("a10_pcie")
    assert product_s("rtx_pro_6000_pcie") < product_s("l40s_pcie") < product_s("l4_pcie")
    for blackwell in ("b200_sxm", "b300_sxm", "gb200_nvl72", "gb300_nvl72"):
        assert product_s(blackwell) < product_s("h200_sxm")
        assert stream_s(blackwell) < stream_s("h200_sxm")


def test_the_documentation_has_the_present_figures(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    from platform_tables import page

    written = (ROOT / "docs" / "platforms.md").read_text()
    assert written == page(), "python benchmarks/platform_tables.py --write docs/platforms.md"
