"""Overrides as people write them, and platforms after them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dse.config import check_data
from dse.errors import ConfigError, UnknownNameError
from dse.machine import Precision
from dse.machine.collectives import CollectiveOp
from dse.machine.kernels import gemm_estimate
from dse.machine.platforms import (
    PlatformDocument,
    list_platforms,
    load_platform,
    override_platform,
    parse_override,
)

H100 = load_platform("h100_sxm")
A100 = load_platform("a100_sxm_80")
NAMES = {name: name for name in ("h100_sxm", "a100_sxm_80", "my/own.v2.yaml")}


def changed(text, platform=H100, name=""):
    return override_platform(platform, [parse_override(text, NAMES)], name=name)[0]


def figures(text, platform=H100):
    return {figure.quantity: figure for figure in override_platform(platform, [text])[1]}


@pytest.mark.parametrize(
    ("text", "platform", "path"),
    [
        ("price=-10%", "", "prices"),
        ("platform.h100_sxm.price=40USD/h", "h100_sxm", "prices"),
        ("platforms.h100_sxm.prices.aws=40USD/h", "h100_sxm", "prices.aws"),
        ("platform.price=-10%", "", "prices"),
        ("platform.link.bandwidth=+20%", "", "links.bandwidth"),
        ("platform.h100_sxm.link.pcie.latency=3us", "h100_sxm", "links.pcie.latency"),
        ("network.efa_3200g.nics=16", "", "networks.efa_3200g.nics"),
        ("memory=141GB", "", "device.memory.capacity"),
        ("memory.bandwidth=+1%", "", "device.memory.bandwidth"),
        ("platform.h100_sxm.memory_bandwidth=+1%", "h100_sxm", "device.memory.bandwidth"),
        ("peak=+1%", "", "device.peak"),
        ("host_link.latency=*0.5", "", "node.host_link.latency"),
        ("host.launch=1us", "", "host.launch"),
        ("platform.my/own.v2.yaml.price=1USD/h", "my/own.v2.yaml", "prices"),
        ("h100_sxm.price=2.10 USD/GPU/h", "h100_sxm", "prices"),
        ("my/own.v2.yaml.link.bandwidth=+1%", "my/own.v2.yaml", "links.bandwidth"),
    ],
)
def test_paths_are_spelled_out(text, platform, path):
    override = parse_override(text, NAMES)
    assert (override.text, override.platform, override.path) == (text, platform, path)
    assert override.of_price == path.startswith("price")


@pytest.mark.parametrize(
    ("text", "moved"),
    [
        (
            "price.aws=40USD/h",
            {
                "price AWS p5.48xlarge (us-east-1, efa_3200g)": "40.00 USD/h",
                "price AWS p5.4xlarge": "5.00 USD/h",
            },
        ),
        ("links.nvswitch.bandwidth=+20%", {"links.nvswitch.bandwidth": "540 GB/s"}),
        ("links.NVSwitch.bandwidth=100 Gbit/s", {"links.nvswitch.bandwidth": "12.5 GB/s"}),
        ("link.latency=* 2", {"links.nvswitch.latency": "5 us", "links.pcie.latency": "8 us"}),
        ("network.efa_3200g.nics=16", {"networks.efa_3200g.nics": "16"}),
        ("device.peak.bf16=1PFLOP/s", {"device.peak.bf16": "1000 TFLOP/s"}),
        ("device.memory.reserved=-50 %", {"device.memory.reserved": "2 GiB"}),
        ("device.compute_units=144", {"device.compute_units": "144"}),
        ("default_link=pcie", {"default_link": "pcie"}),
        ("links.pair_bandwidth=+10%", {}),
    ],
)
def test_values_are_absolute_or_relative(text, moved):
    assert {name: figure.after for name, figure in figures(text).items()} == moved


def test_a_whole_block_of_one_unit_takes_a_share():
    assert set(figures("device.peak=x2")) == {
        f"device.peak.{precision}" for precision in ("fp32", "tf32", "fp16", "bf16", "fp8")
    }
    assert figures("host=× 0.5")["host.launch"].after == "2.5 us"


@pytest.mark.parametrize(
    ("text", "error", "words"),
    [
        ("price", ConfigError, "PATH=VALUE"),
        ("=3", ConfigError, "PATH=VALUE"),
        ("link.bandwith=+20%", UnknownNameError, "did you mean `bandwidth`"),
        ("link.nvswich.bandwidth=+20%", UnknownNameError, "did you mean `nvswitch`"),
        ("platform.h100_sxn.price=1USD/h", UnknownNameError, "did you mean `h100_sxm`"),
        ("h100_sxn.price=1USD/h", UnknownNameError, "did you mean `h100_sxm`"),
        ("platform.h100_sxm.prise=1USD/h", UnknownNameError, "did you mean `price`"),
        ("device.memory.bandwith=+1%", UnknownNameError, "did you mean `bandwidth`"),
        ("nonsense=+1%", UnknownNameError, "device"),
        ("price.Hetzner=+1%", UnknownNameError, "`Hetzner`"),
        ("name=x", UnknownNameError, "`name`"),
        ("default_link.first=x", UnknownNameError, "`first`"),
        ("calibrations.0=x", UnknownNameError, "list"),
        ("price=40", ConfigError, "no unit"),
        ("price=40 GB", ConfigError, "is a size"),
        ("link.bandwidth=-100%", ConfigError, "more than 0"),
        ("link.bandwidth=-120%", ConfigError, "-120%"),
        ("device.peak=1PFLOP/s", ConfigError, "bf16"),
        ("network.nics=2.5", ConfigError, "whole number"),
        ("network.nics=*1.3", ConfigError, "whole number"),
        ("network.nics=*1e400", ConfigError, "finite"),
        ("link.bandwidth=*1e400", ConfigError, "inf"),
        ("default_link=*2", ConfigError, "not a number"),
        ("default_link=nvlink", ConfigError, "`pcie`"),
        ("links.pcie.pair_bandwidth=1GB/s", ConfigError, "nvlink_pairs"),
        ("links.pcie.kind=wire", ConfigError, "`wire`"),
        ("memory=1GiB", ConfigError, "reserved"),
    ],
)
def test_wrong_overrides_say_what_was_meant(text, error, words):
    with pytest.raises(error) as caught:
        override_platform(H100, [text])
    assert words in str(caught.value)
    assert type(caught.value) is error


def test_documents_read_back_what_they_dump():
    for name in list_platforms():
        document = load_platform(name).document
        dumped = document.model_dump(mode="json")
        assert check_data(dumped, PlatformDocument, file=name) == document


def test_each_field_changes_what_it_names():
    assert changed("memory=100GiB").device.memory_bytes == 100 * 2**30
    assert changed("memory.bandwidth=*2").device.memory_bandwidth_bytes_per_s == 6.7e12
    assert changed("l2.size=*2").device.l2_bytes == 100 * 2**20
    assert changed("kernel_floor=1us").device.kernel_floor_s == pytest.approx(1e-6)
    peak = changed("peak=*2").device.peak
    assert peak.of(Precision.BF16) == 2 * H100.device.peak.of(Precision.BF16)
    assert peak.of(Precision.FP32) == 2 * H100.device.peak.of(Precision.FP32)
    half = changed("peak.fp16=1PFLOP/s").device.peak
    assert half.of(Precision.FP16) == 1e15
    assert half.of(Precision.BF16) == H100.device.peak.of(Precision.BF16)
    links = {link.name: link for link in changed("link.pcie.bandwidth=*2").links}
    assert links["pcie"].bandwidth_bytes_per_s == 96e9
    assert links["nvswitch"] == H100.links[0]
    networks = {one.name: one for one in changed("network.nics=*2").networks}
    assert networks["ethernet_100g"].nics_per_node == 2
    assert networks["efa_3200g"].nics_per_node == 64
    assert changed("host_link.bandwidth=*2").host_link.bandwidth_bytes_per_s == 126e9
    assert changed("host_memory=1TiB").host_memory_bytes == 2**40
    assert changed("storage=5GB/s").cluster(8).storage_bandwidth_bytes_per_s == 5e9
    assert changed("host.graph_launch=1us").host.graph_launch_s == pytest.approx(1e-6)


def test_changes_come_one_after_the_other():
    platform, moved = override_platform(H100, ["memory.bandwidth=1TB/s", "memory.bandwidth=+50%"])
    assert platform.device.memory_bandwidth_bytes_per_s == pytest.approx(1.5e12)
    assert [(figure.before, figure.after) for figure in moved] == [
        ("3.35 TB/s", "1 TB/s"),
        ("1 TB/s", "1.5 TB/s"),
    ]
    facts = {fact.quantity: fact for fact in platform.facts}
    assert facts["device.memory.bandwidth"].value == "1.5 TB/s"
    assert len(platform.facts) == len(H100.facts)


def test_other_platforms_stay():
    assert changed("platform.a100_sxm_80.price=1USD/h", H100) == H100
    assert changed("platform.my/own.v2.yaml.price=1USD/h", A100) == A100
    moved = changed("platform.my/own.v2.yaml.price=1USD/h", A100, "my/own.v2.yaml")
    assert moved.quote(8).usd_per_hour == 1


def test_a_price_is_that_of_a_node():
    assert changed("price=40USD/h").quote(8).usd_per_hour == 40
    assert changed("price=40USD/h").quote(16).usd_per_hour == 80
    # A share moves every list price, so the cheapest stays the cheapest.
    half = changed("price=-50%")
    assert half.quote(8).usd_per_hour == H100.quote(8).usd_per_hour / 2
    assert [offer.usd_per_hour for offer in half.offers if offer.superseded] == [
        offer.usd_per_hour for offer in H100.offers if offer.superseded
    ]
    platform, moved = override_platform(H100, ["price=20USD/h"], price_basis="spot")
    assert platform.quote(8, basis="spot").usd_per_hour == 20
    assert platform.quote(8).usd_per_hour == H100.quote(8).usd_per_hour
    assert moved[0].before == "not set"
    dear = changed("price.AWS=1000USD/h").quote(8)
    assert dear.offer.provider != "AWS"


def test_a_price_for_each_gpu_is_paid_for_those_that_are_used():
    changed_platform = changed("price=2.10 USD/GPU/h")
    assert changed_platform.quote(8).usd_per_hour == pytest.approx(16.80)
    assert changed_platform.quote(3).usd_per_hour == pytest.approx(6.30)
    assert changed_platform.quote(8, basis="capacity_block") == H100.quote(
        8, basis="capacity_block"
    )
    aws = changed("price.AWS=0.5 USD/GPU/h").quote(8)
    assert (aws.usd_per_hour, aws.offer.provider) == (4, "AWS")
    first = figures("price=2.10 USD/GPU/h")["price AWS p5.48xlarge (us-east-1, efa_3200g)"]
    assert (first.before, first.after) == ("55.04 USD/h", "2.10 USD/GPU/h")


def test_what_a_platform_lacks_takes_no_share():
    document = H100.document
    node = document.node.model_copy(update={"host_memory": None})
    bare = replace(
        H100, host_memory_bytes=None, document=document.model_copy(update={"node": node})
    )
    with pytest.raises(ConfigError, match="does not have"):
        changed("host_memory=+10%", bare)
    assert changed("host_memory=1TiB", bare).host_memory_bytes == 2**40


def test_measured_curves_follow_their_line():
    """Latency and bandwidth of the line move with the link's; at the ends that is all there is."""
    sizes = np.array([1e3, 1e6, 1e9, 1e12])
    old = H100.collective_time("all_reduce", sizes, 8)
    faster = changed("link.bandwidth=*2").collective_time("all_reduce", sizes, 8)
    assert (faster <= old).all()
    assert faster[-1] == pytest.approx(old[-1] / 2, rel=0.01)
    assert faster[0] == pytest.approx(old[0], rel=0.01)
    later = changed("link.latency=*2").collective_time("all_reduce", sizes, 8)
    assert later[0] == pytest.approx(2 * old[0], rel=0.01)
    assert later[-1] == pytest.approx(old[-1], rel=0.01)
    assert (changed("link.bandwidth=*1").collective_time("all_reduce", sizes, 8) == old).all()


@pytest.mark.parametrize("op", list(CollectiveOp))
@pytest.mark.parametrize("path", ["bandwidth", "latency"])
@pytest.mark.parametrize(
    "name", ["a100_sxm_80", "gb200_nvl72", "l40s_pcie", "mi300x", "v100_dgx1"]
)
def test_a_better_measured_link_is_never_slower(name, path, op):
    """On measured numbers of ranks and others, with its own curves or a related operation's."""
    sizes = np.geomspace(64, 4e9, 200)
    platform = load_platform(name)
    for ranks in (2, 3, 4, 8):
        before = platform.collective_time(op, sizes, ranks)
        for factor in (1.05, 1.3, 2.0, 10.0):
            by = factor if path == "bandwidth" else 1 / factor
            moved = changed(f"link.{path}=*{by:.6f}", platform)
            after = moved.collective_time(op, sizes, ranks)
            assert (after <= before * (1 + 1e-9)).all()
            assert (np.diff(after) >= -1e-9 * after[1:]).all()
            before = after


def test_changes_of_a_measured_link_add_up():
    sizes = np.geomspace(64, 4e9, 50)
    twice = changed("link.latency=*2", changed("link.latency=*3", changed("link.bandwidth=*2")))
    at_once = changed("link.latency=*6", changed("link.bandwidth=*2"))
    back = changed("link.latency=*0.5", changed("link.latency=*2"))
    for op in CollectiveOp:
        one, other, same, unchanged = (
            platform.collective_time(op, sizes, 8) for platform in (twice, at_once, back, H100)
        )
        assert one == pytest.approx(other, rel=1e-9)
        assert (same == unchanged).all()


@pytest.mark.parametrize("path", ["device.peak", "memory.bandwidth"])
def test_measured_products_move_with_their_reference(path):
    """What was learned of products jumps with the device's figures; under changes it is held."""
    rng = np.random.default_rng(0)
    m, n, k = (rng.integers(1, 8192, 60) for _ in range(3))
    before = gemm_estimate(H100.device, m, n, k, Precision.BF16).time_s
    for factor in (1.1, 1.5, 2.0, 4.0):
        device = changed(f"{path}=*{factor}").device
        assert device.calibration("gemm", Precision.BF16) is not None
        after = gemm_estimate(device, m, n, k, Precision.BF16).time_s
        assert (after <= before * (1 + 1e-12)).all()
        assert (after >= before / factor * (1 - 1e-12)).all()
        before = after if factor == 1.1 else np.minimum(before, after)
    same = changed("memory=100GiB", H100).device
    kept = gemm_estimate(same, m, n, k, Precision.BF16).time_s
    assert kept == pytest.approx(
        gemm_estimate(H100.device, m, n, k, Precision.BF16).time_s, rel=1e-12
    )


def test_every_built_in_platform_takes_every_change():
    paths = [
        *("device.memory.bandwidth", "device.l2.bandwidth", "device.l2.size", "device.peak"),
        *("links.bandwidth", "links.latency", "networks.bandwidth", "networks.latency"),
        *("node.host_link.bandwidth", "host.launch", "price"),
    ]
    for name in list_platforms():
        platform = load_platform(name)
        moved, found = override_platform(platform, [f"{path}=*1.1" for path in paths])
        assert len(found) >= len(paths) - 1
        assert moved.device.memory_bytes == platform.device.memory_bytes
        (time_s,) = np.atleast_1d(moved.kernel_time("elementwise", traffic_bytes=1e9))
        assert time_s < platform.kernel_time("elementwise", traffic_bytes=1e9)


@pytest.mark.parametrize("price", ["8 USD/GPU/h", "100 USD/h"])
def test_a_price_at_any_provider_changes_no_network(price):
    # Two networks, neither of them the platform's own: that of the cheaper offer counts.
    before = load_platform("b200_sxm")
    after, _ = override_platform(before, [f"price={price}"])
    assert before.rented_network(64) != before.networks[0].name
    assert after.rented_network(64) == before.rented_network(64)
