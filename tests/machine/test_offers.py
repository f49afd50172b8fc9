"""Offers: what counts, and how many instances hold a job."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
import pytest

from dse.config import check_data
from dse.errors import ConfigError
from dse.machine import Offer
from dse.machine.platforms import (
    PlatformDocument,
    load_platform,
    override_platform,
    platform_from_text,
)
from tests.conftest import ROOT

EIGHT = Offer("A", "eight", 8, 80.0, "", "unknown", "on_demand", "a list", ("fast", "slow"))
ONE = replace(EIGHT, instance="one", devices=1, usd_per_hour=12.0, networks=())
FOUR = replace(EIGHT, instance="four", devices=4, usd_per_hour=44.0, networks=())
OTHER = replace(EIGHT, provider="B", usd_per_hour=100.0, networks=("other",))
EACH = replace(EIGHT, provider="C", devices=1, usd_per_hour=11.5, by_device=True)

BASE = load_platform("h100_sxm")
TEXT = (ROOT / "platforms" / "h100_sxm.yaml").read_text()


def platform(*offers: Offer):
    return replace(BASE, offers=offers)


@pytest.mark.parametrize(
    ("offer", "world_size", "instances"),
    [
        *((EIGHT, size, 1) for size in (1, 7, 8)),
        (EIGHT, 9, 2),
        (EIGHT, 24, 3),
        (ONE, 1, 1),
        # Two instances of one device are not a node of two.
        (ONE, 2, None),
        (FOUR, 3, 1),
        (FOUR, 8, None),
        (FOUR, 16, None),
        (replace(EIGHT, devices=16), 8, 1),
        (replace(EIGHT, devices=16), 24, 2),
        (EACH, 3, 3),
        (EACH, 16, 16),
    ],
)
def test_the_ranks_of_a_node_sit_in_one_instance(offer, world_size, instances):
    assert offer.instances_for(world_size, 8, 8) == instances


@pytest.mark.parametrize(
    ("devices", "world_size", "domain", "instances"),
    [
        (72, 32, 72, 1),
        (72, 144, 72, 2),
        # Sixteen pods, of whose 72 devices 64 are used: fifteen instances do not have them.
        (72, 1024, 64, 16),
        (4, 32, 72, 8),
        (4, 1024, 64, 256),
        (36, 1024, 64, 32),
        (144, 1024, 64, 8),
    ],
)
def test_an_instance_with_a_pod_is_rented_as_a_whole(devices, world_size, domain, instances):
    assert replace(EIGHT, devices=devices).instances_for(world_size, 4, domain) == instances


def test_small_jobs_take_small_instances():
    chosen = {
        size: platform(EIGHT, ONE, FOUR).quote(size, network="fast")
        for size in (1, 2, 4, 5, 8, 16)
    }
    assert {size: quote.usd_per_hour for size, quote in chosen.items()} == {
        1: 12.0,
        2: 44.0,
        4: 44.0,
        5: 80.0,
        8: 80.0,
        16: 160.0,
    }
    assert [chosen[size].offer.instance for size in (1, 4, 16)] == ["one", "four", "eight"]
    assert platform(ONE).quote(2) is None
    # 11.50 USD for each of six devices, less than 80 USD for the eight of an instance.
    assert platform(EIGHT, EACH).quote(6).usd_per_hour == 69.0


def test_several_nodes_need_the_network_of_the_offer():
    machines = platform(EIGHT, OTHER)
    assert machines.quote(16, network="slow").usd_per_hour == 160.0
    assert machines.quote(16, network="other").usd_per_hour == 200.0
    assert machines.quote(16, network="other", provider="A") is None
    assert machines.quote(16, network="other", provider="b").usd_per_hour == 200.0
    assert machines.quote(8, network="other").usd_per_hour == 80.0
    assert machines.quote(16, network=None).usd_per_hour == 160.0
    # Without a name it is the platform's default, which neither has.
    assert machines.quote(16) is None
    unbound = replace(EIGHT, networks=(), basis="given")
    assert platform(unbound).quote(16, network="other", basis="spot").usd_per_hour == 160.0


networks = st.lists(st.sampled_from(["fast", "slow", "other"]), unique=True).map(tuple)
offers = st.builds(
    replace,
    st.sampled_from([EIGHT, ONE, FOUR, OTHER, EACH]),
    usd_per_hour=st.floats(0.1, 1000),
    networks=networks,
    superseded=st.booleans(),
)


@given(st.lists(offers, max_size=6), st.sampled_from([1, 2, 4, 8, 16, 32]), st.data())
def test_fewer_networks_never_make_a_quote_cheaper(drawn, world_size, data):
    asked = data.draw(st.sampled_from([None, "fast", "slow", "other"]))
    found = platform(*drawn).quote(world_size, network=asked)
    kept = [
        # A list that is emptied would mean any network, so one stays.
        replace(offer, networks=data.draw(st.sampled_from([offer.networks, offer.networks[:1]])))
        for offer in drawn
    ]
    restricted = platform(*kept).quote(world_size, network=asked)
    if restricted is not None:
        assert found is not None
        assert restricted.usd_per_hour >= found.usd_per_hour
    named = platform(*drawn).quote(world_size, network="fast")
    if named is not None:
        assert named.usd_per_hour >= platform(*drawn).quote(world_size, network=None).usd_per_hour


def test_files_bind_prices_to_networks():
    networks = {offer.instance: offer.networks for offer in BASE.offers}
    assert networks["p5.48xlarge"] == ("efa_3200g",)
    assert networks["Standard_ND96isr_H100_v5"] == ("infiniband_ndr400",)
    assert networks["p5.4xlarge"] == ()
    aws = BASE.quote(16, network="efa_3200g", provider="AWS")
    assert (aws.usd_per_hour, aws.offer.host_memory_bytes, aws.offer.cores) == (
        110.08,
        2 * 2**40,
        192,
    )
    assert BASE.quote(16, network="infiniband_ndr400", provider="AWS") is None
    assert BASE.quote(16, provider="AWS") is None
    assert BASE.quote(16).offer.provider == "Azure"


def test_files_of_earlier_versions_price_every_network():
    """Their entries name no network, so they count over all, as when they were written."""
    head, _, tail = TEXT.partition("offers:\n")
    line = (
        "prices:\n  - {provider: AWS, instance: p5.48xlarge, devices: 8, price: 55.04 USD/h, "
        "region: us-east-1, as_of: '2026-03', basis: on_demand, source: a list}\n"
    )
    old = platform_from_text(head + line + tail[tail.index("calibrations:") :], "old.yaml")
    for network in (None, *(network.name for network in old.networks), "anything"):
        assert old.quote(16, network=network).usd_per_hour == 110.08
    changed, _ = override_platform(old, ["price=-50%"])
    assert changed.quote(16, network="efa_3200g").usd_per_hour == 55.04
    dumped = old.document.model_dump(mode="json")
    assert check_data(dumped, PlatformDocument, file="old") == old.document
    with pytest.raises(ConfigError, match="prices"):
        platform_from_text(head + line + "offers:\n" + tail, "both.yaml")


@pytest.mark.parametrize(
    ("change", "place", "words"),
    [
        (("network: efa_3200g", "network: efa_3200"), "network", "`efa_3200g`"),
        (("network: efa_3200g, ", ""), "network", "p5.48xlarge"),
        (("network: efa_3200g", "network: [efa_3200g, any_]"), "network", "any_"),
        (("devices: 8, price", "by_device: true, devices: 8, price"), "devices", "1"),
    ],
)
def test_what_is_wrong_with_an_offer_is_said_at_its_place(change, place, words):
    with pytest.raises(ConfigError) as caught:
        platform_from_text(TEXT.replace(*change), "h100.yaml")
    (first, *_) = caught.value.diagnostics
    assert first.field.endswith(place)
    assert first.line is not None
    assert words in str(caught.value)


def test_pods_need_a_network_between_them_only():
    tray = replace(EIGHT, instance="tray", devices=4, usd_per_hour=40.0, networks=("fast",))
    rack = replace(EIGHT, instance="rack", devices=72, usd_per_hour=700.0, networks=("slow",))
    machines = replace(load_platform("gb200_nvl72"), offers=(tray, rack))
    assert not machines.needs_network(72)
    assert machines.needs_network(144)
    # Sixteen trays cost 640 USD, eighteen 720; a rack costs 700.
    assert machines.quote(64, network="other").offer == tray
    assert machines.quote(72, network="other").offer == rack
    assert machines.quote(144, network="fast").usd_per_hour == 1440.0
    assert machines.quote(144, network="slow").usd_per_hour == 1400.0
    assert machines.quote(144, network="other") is None


def test_the_network_that_is_rented():
    default = BASE.networks[0].name
    machines = platform(replace(EIGHT, networks=("efa_3200g", "tcpx_800g")), ONE)
    assert machines.rented_networks(16) == ("efa_3200g", "tcpx_800g")
    assert machines.rented_network(16) == "efa_3200g"
    assert machines.rented_network(16, provider="B") == default
    cheaper = replace(EIGHT, networks=("tcpx_800g",), usd_per_hour=70.0)
    assert platform(*machines.offers, cheaper).rented_network(16) == "tcpx_800g"
    own = replace(EIGHT, networks=(), basis="given")
    assert platform(*machines.offers, own).rented_network(16) == default
    assert "efa_3200g" in machines.no_price_reason(16)
    assert "B" in machines.no_price_reason(16, provider="B")
    assert "1" in platform(ONE).no_price_reason(2)
    assert machines.no_price_reason(8) == ""
    # Nodes of six are no instances with eight devices, though there are enough of these.
    sixes = replace(machines, devices_per_node=6)
    assert "nodes of 6" in sixes.no_price_reason(12)
