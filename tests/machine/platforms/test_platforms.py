from __future__ import annotations

import pickle

import numpy as np
import pytest

from dse.errors import ConfigError, UnknownNameError
from dse.machine import Precision
from dse.machine.platforms import (
    list_platforms,
    load_platform,
    override_platform,
    platform_from_text,
)
from tests.conftest import ROOT


@pytest.fixture(params=list_platforms())
def platform(request):
    return load_platform(request.param)


def test_all_device_types_ship():
    wanted = "v100_dgx1 v100_dgx2 a100_sxm_40 a100_sxm_80 a100_pcie h100_sxm h100_pcie h200_sxm"
    assert set(f"{wanted} b200_sxm l40s_pcie cpu".split()) <= set(list_platforms())


def test_figures_are_of_the_right_order(platform):
    device = platform.device
    assert 1e9 < device.memory_bandwidth_bytes_per_s < 10e12
    assert device.l2_bandwidth_bytes_per_s > device.memory_bandwidth_bytes_per_s
    assert 0 < device.reserved_memory_bytes < 0.2 * device.memory_bytes
    rates = [device.peak.of(precision) for precision in (Precision.FP32, Precision.TF32)]
    assert rates[0] <= rates[1] <= device.peak.of(Precision.FP16)
    for network in platform.networks:
        assert 1e9 <= network.nic_bandwidth_bytes_per_s <= 100e9
    # Fitted models compare by identity: their text is what has to survive.
    assert repr(pickle.loads(pickle.dumps(platform))) == repr(platform)


def test_every_figure_says_where_it_comes_from(platform):
    assert {fact.origin for fact in platform.facts} <= {
        "datasheet",
        "measured",
        "fitted",
        "transferred",
        "assumed",
        "list price",
    }
    assert all(fact.source for fact in platform.facts)
    assert sum(fact.origin == "list price" for fact in platform.facts) == len(platform.offers)


def test_shares_and_degrees_have_no_unit():
    h100 = {fact.quantity: fact.value for fact in load_platform("h100_sxm").facts}
    assert h100["device.fp32_products.share"] == "0.78"
    assert h100["links.nvswitch.in_switch_reduction"] == "0.61"


def test_every_file_names_its_schema():
    for folder in ("platforms", "models", "search_spaces"):
        for path in (ROOT / folder).glob("*.yaml"):
            first = path.read_text().splitlines()[0]
            assert first.startswith("# yaml-language-server: $schema=../docs/schemas/"), path
            assert (path.parent / first.split("=")[1]).is_file()


def test_the_cheapest_current_price_is_taken_in_whole_instances():
    h100 = load_platform("h100_sxm")
    quote = h100.quote(9, network="efa_3200g")
    assert (quote.offer.provider, quote.instances, quote.usd_per_hour) == ("AWS", 2, 110.08)
    assert h100.quote(4, provider="GCP").usd_per_hour == 88.49
    assert h100.quote(8, basis="capacity_block").usd_per_hour == 39.33
    assert h100.quote(8, basis="spot") is None
    assert load_platform("v100_dgx2").quote(8) is None


def test_a_price_in_a_file_may_be_for_each_device():
    text = (ROOT / "platforms" / "h100_sxm.yaml").read_text()
    priced = platform_from_text(text.replace("price: 55.04 USD/h", "price: 6.88 USD/GPU/h"), "h")
    assert [offer.usd_per_hour for offer in priced.offers] == pytest.approx(
        [offer.usd_per_hour for offer in load_platform("h100_sxm").offers]
    )
    assert priced.quote(4).usd_per_hour == pytest.approx(55.04)
    with pytest.raises(ConfigError, match="unit"):
        platform_from_text(text.replace("price: 55.04 USD/h", "price: 6.88 USD/GPUs/h"), "h")


def test_clusters_fill_nodes():
    platform = load_platform("a100_sxm_80")
    assert platform.cluster(4).node_count == 1
    assert platform.cluster(16).node_count == 2
    with pytest.raises(ConfigError, match="multiple") as caught:
        platform.cluster(12)
    assert "node.devices=6" in str(caught.value)
    with pytest.raises(ConfigError, match="multiple") as caught:
        platform.cluster(13)
    assert "node.devices" not in str(caught.value)
    with pytest.raises(UnknownNameError, match="did you mean `ethernet_100g`"):
        platform.cluster(8, network="ethernet_10g0")


def test_clusters_fill_pods_equally():
    platform = load_platform("gb200_nvl72")
    assert (platform.devices_per_node, platform.nodes_per_pod) == (4, 18)
    for world_size, domains, size, nodes in (
        (2, 1, 2, 1),
        (64, 1, 64, 16),
        (72, 1, 72, 18),
        (128, 2, 64, 16),
        (144, 2, 72, 18),
        # Fifteen pods hold them, but not equally.
        (1024, 16, 64, 16),
        (4096, 64, 64, 16),
    ):
        cluster = platform.cluster(world_size)
        assert (cluster.domain_count, cluster.domain_size) == (domains, size)
        assert cluster.nodes_per_domain == nodes
    assert cluster.node_count == 1024
    with pytest.raises(ConfigError, match="use 72 or 80"):
        platform.cluster(76)
    with pytest.raises(ConfigError, match="multiple"):
        platform.cluster(66)


def test_links_of_any_platform_can_reach_over_several_nodes():
    wider, figures = override_platform(load_platform("h100_sxm"), ["pod.nodes=4"])
    assert wider.cluster(32).domain_count == 1
    assert [figure.quantity for figure in figures] == ["pod.nodes"]


def test_networks_with_leaves():
    name = "networks.infiniband_ndr400"
    overrides = [f"{name}.nodes_per_leaf=4", f"{name}.oversubscription=2", f"{name}.rails=true"]
    platform, _ = override_platform(load_platform("h100_sxm"), overrides)
    network = platform.networks[0]
    assert (network.nodes_per_leaf, network.oversubscription, network.rails) == (4, 2.0, True)
    with pytest.raises(ConfigError, match="nodes_per_leaf"):
        override_platform(load_platform("h100_sxm"), overrides[1:])
    with pytest.raises(ConfigError, match="oversubscription"):
        override_platform(load_platform("h100_sxm"), [overrides[0], f"{name}.oversubscription=0"])
    with pytest.raises(UnknownNameError, match="name the one"):
        override_platform(load_platform("h100_sxm"), ["network.nodes_per_leaf=4"])


def test_kernel_times_by_contract():
    platform = load_platform("h100_sxm")
    times = platform.kernel_time("gemm", m=np.array([128, 4096]), n=4096, k=4096)
    assert times.shape == (2,)
    assert times[0] < times[1]
    forward = platform.kernel_time(
        "embedding_forward", rows=10**6, dim=128, batch=np.array([1024, 65536]), pooling=10
    )
    assert forward[0] < forward[1]
    backward = platform.kernel_time(
        "embedding_backward", rows=10**6, dim=128, batch=65536, pooling=10
    )
    assert backward > forward[1]
    with pytest.raises(UnknownNameError, match="unknown operator"):
        platform.kernel_time("conv", m=1)
    with pytest.raises(ConfigError, match="lacks `k`"):
        platform.kernel_time("gemm", m=1, n=1)
    with pytest.raises(ConfigError, match="does not take `q`"):
        platform.kernel_time("elementwise", traffic_bytes=1, q=2)


def test_collective_times_by_contract():
    platform = load_platform("h100_sxm")
    sizes = np.logspace(3, 9, 13)
    for op in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast"):
        inside = platform.collective_time(op, sizes, 8)
        between = platform.collective_time(op, sizes, 16)
        assert np.all(np.diff(inside) >= 0)
        # The slowest link of a ring decides, wherever it is.
        assert np.all(between >= inside)
        assert np.all(between[:-1] > inside[:-1])
    with pytest.raises(UnknownNameError, match="unknown collective"):
        platform.collective_time("all_for_one", 1.0, 8)


def test_a_platform_prints_in_one_line():
    text = repr(load_platform("h100_sxm"))
    assert text.startswith("Platform('h100_sxm', 8 × 'NVIDIA H100")
    assert len(text) < 300
    assert len(repr(load_platform("h100_sxm").cluster(16))) < 2000


@pytest.mark.parametrize(
    ("old", "new", "field"),
    [
        ("name: h100_sxm", "name: my h100", "name"),
        ("name: h100_sxm", "name: racks/h100", "name"),
        ('as_of: "2025-05"', "as_of: 2026-13-45", "offers[0].as_of"),
        ('as_of: "2025-05"', "as_of: 2025-02-30", "offers[0].as_of"),
    ],
)
def test_a_name_or_date_that_is_none_has_its_place(tmp_path, old, new, field):
    text = (ROOT / "platforms/h100_sxm.yaml").read_text()
    line = text[: text.index(old)].count("\n") + 1
    path = tmp_path / "mine.yaml"
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(ConfigError) as caught:
        load_platform(path)
    (problem,) = caught.value.diagnostics
    assert (problem.line, problem.field) == (line, field)
    assert problem.column is not None
