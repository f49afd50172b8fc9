"""Platforms that are given by what differs from others."""

from __future__ import annotations

import pytest

from dse.config import check_data
from dse.errors import ConfigError, UnknownNameError
from dse.machine.platforms import (
    DerivedPlatformBlock,
    PlatformDocument,
    derive_platform,
    list_platforms,
    load_platform,
    override_platform,
    override_platforms,
    platform_from_text,
)
from tests.conftest import ROOT

H100 = load_platform("h100_sxm")


def own(**differences: object):
    return load_platform({"from": "h100_sxm", **differences})


def facts(platform):
    return {fact.quantity: fact for fact in platform.facts}


def machine(platform):
    # Fitted models compare by identity, so the text is compared.
    return repr((platform.device, platform.links, platform.networks, platform.host))


def test_a_price_for_each_gpu_is_paid_for_those_that_are_used():
    platform = own(price="2.10 USD/GPU/h")
    assert platform.name == "h100_sxm (2.10 USD/GPU/h)"
    for ranks in (1, 4, 8, 32):
        assert platform.quote(ranks).usd_per_hour == pytest.approx(2.10 * ranks)
    # 16.80 USD/h at ten million samples a second: 16.8 / 3600 s / 10 M/s = 0.000467 USD a million.
    assert platform.quote(8).cost_usd_per_million(1e7) == pytest.approx(16.80 / 3600 / 10)


def test_a_price_in_all_is_that_of_whole_nodes():
    platform = own(price="16.80 USD/h")
    assert [platform.quote(ranks).usd_per_hour for ranks in (1, 8, 16)] == [16.80, 16.80, 33.60]


def test_a_given_price_is_the_only_one():
    platform = own(price="2.10 USD/GPU/h")
    for basis, provider in (("spot", ""), ("on_demand", "AWS"), ("reserved", "anyone")):
        assert platform.quote(8, basis=basis, provider=provider).usd_per_hour == 16.8
    prices = [fact for fact in platform.facts if fact.quantity.startswith("price ")]
    assert [(fact.value, fact.origin) for fact in prices] == [("2.10 USD/GPU/h", "given")]
    assert "a mapping" in prices[0].source
    assert H100.quote(8, basis="spot") is None


def test_all_else_stays():
    platform = own(price="2.10 USD/GPU/h", name="my_h100")
    assert platform.name == "my_h100"
    assert machine(platform) == machine(H100)


def test_figures_change_as_overrides_change_them():
    platform = own(
        network={"bandwidth": "200 Gbit/s"},
        links={"nvswitch": {"bandwidth": "300 GB/s"}},
        device={"memory": {"capacity": "64 GiB"}},
        host={"launch": "4 us"},
    )
    texts = (
        "network.bandwidth=200 Gbit/s",
        "links.nvswitch.bandwidth=300 GB/s",
        "device.memory.capacity=64 GiB",
        "host.launch=4 us",
    )
    other, moved = override_platform(H100, texts)
    assert machine(platform) == machine(other)
    assert platform.quote(8).usd_per_hour == H100.quote(8).usd_per_hour
    found = facts(platform)
    for figure in moved:
        assert (found[figure.quantity].value, found[figure.quantity].origin) == (
            figure.after,
            "given",
        )
    assert (
        platform.collective_time("all_to_all", 1e8, 8)
        == other.collective_time("all_to_all", 1e8, 8)
    ).all()


def test_a_network_of_ones_own():
    roce = {"kind": "roce", "nics": 4, "bandwidth": "100 Gbit/s", "latency": "4 us"}
    platform = own(networks={"my_roce": roce}, default_network="my_roce")
    first = platform.networks[0]
    assert (first.name, first.nics_per_node, first.nic_bandwidth_bytes_per_s, first.latency_s) == (
        "my_roce",
        4,
        12.5e9,
        4e-6,
    )
    assert platform.networks[1:] == H100.networks
    assert facts(platform)["networks.my_roce.bandwidth"].origin == "given"


def test_a_name_tells_what_differs():
    assert own().name == "h100_sxm (as it is)"
    assert own(network={"nics": 4}).name == "h100_sxm (network.nics 4)"
    several = {"nics": 4, "bandwidth": "100 Gbit/s", "latency": "4 us"}
    long = own(price="16.80 USD/h", network=several, host={"launch": "4 us"})
    assert long.name == "h100_sxm (16.80 USD/h, own network, own host)"
    path = str(ROOT / "platforms" / "h100_sxm.yaml")
    assert load_platform({"from": path, "price": "1 USD/h"}).name == "h100_sxm (1 USD/h)"


@pytest.mark.parametrize(
    ("differences", "words"),
    [
        ({"prise": "2 USD/h"}, "`price`"),
        ({"base": "h100_sxm"}, "`from`"),
        ({"price": "2"}, "USD/GPU/h"),
        ({"price": "2 USD"}, "USD/GPU/h"),
        ({"price": "-2 USD/GPU/h"}, "at least 0"),
        ({"price": True}, "price"),
        ({"from": "h100_sxn"}, "`h100_sxm`"),
        ({"name": "h200_sxm"}, "built-in"),
        ({"link": {"bandwith": "1 GB/s"}}, "`bandwidth`"),
        ({"links": {"nvswich": {"bandwidth": "1 GB/s"}}}, "`nvswitch`"),
        ({"network": "efa_3200g"}, "block"),
        ({"default_network": "efa"}, "`efa_3200g`"),
        ({"device": {"memory": {"capacity": "1 GiB"}}}, "reserved"),
    ],
)
def test_what_is_wrong_is_said(differences, words):
    with pytest.raises(ConfigError) as caught:
        own(**differences)
    assert words in str(caught.value)


def test_a_platform_without_from_is_refused():
    with pytest.raises(ConfigError, match="from"):
        load_platform({"price": "2 USD/h"})


def test_a_mapping_makes_the_same_platform_again():
    mapping = {"from": "h100_sxm", "price": "2.10 USD/GPU/h", "network": {"nics": 4}}
    derived = check_data(mapping, DerivedPlatformBlock, file="platform").to_derived()
    first = derive_platform(derived, H100, "space.yaml")
    text = (ROOT / "platforms" / "h100_sxm.yaml").read_text()
    again = platform_from_text(derived.text, "space.yaml", bases={"h100_sxm": text})
    assert machine(again) == machine(first)
    assert (again.name, again.offers, again.facts) == (first.name, first.offers, first.facts)
    with pytest.raises(ConfigError, match="h100_sxm"):
        platform_from_text(derived.text, "space.yaml", bases={"a100": text})


def test_a_file_that_derives_a_platform_says_where_it_belongs(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("{from: h100_sxm, price: 2.10 USD/GPU/h}\n")
    with pytest.raises(ConfigError, match="--set"):
        load_platform(str(file))


def test_every_platform_can_be_derived_from():
    for name in list_platforms():
        platform = load_platform({"from": name, "price": "1 USD/GPU/h"})
        assert platform.quote(1).usd_per_hour == 1
        dumped = platform.document.model_dump(mode="json")
        assert check_data(dumped, PlatformDocument, file=name) == platform.document


def test_what_may_differ_is_what_platforms_have():
    """No figure of a platform's file is missing among those that a mapping may change."""

    def keys(schema, node, path=()):
        for alternative in node.get("anyOf", [node]):
            target = alternative
            if "$ref" in alternative:
                target = schema["$defs"][alternative["$ref"].rpartition("/")[2]]
            for name, inner in target.get("properties", {}).items():
                yield (*path, name)
                yield from keys(schema, inner, (*path, name))
            if isinstance(inner := target.get("additionalProperties"), dict):
                yield from keys(schema, inner, (*path, "*"))

    whole, parts = (kind.model_json_schema() for kind in (PlatformDocument, DerivedPlatformBlock))
    sources = ("origin", "source", "as_of")
    wanted = {
        path
        for path in keys(whole, whole)
        if path[-1] not in sources and path[0] not in ("schema_version", "offers", "calibrations")
    }
    assert wanted <= set(keys(parts, parts))


def test_overrides_change_derived_platforms():
    platform = own(price="2.10 USD/GPU/h", name="mine")
    cheaper, moved = override_platform(platform, ["price=-50%"])
    assert cheaper.quote(8).usd_per_hour == pytest.approx(8.4)
    assert [(figure.before, figure.after) for figure in moved] == [("2.10 USD/h", "1.05 USD/h")]
    assert override_platform(platform, ["price=40USD/h"])[0].quote(8).usd_per_hour == 40
    each = override_platform(platform, ["price=3 USD/GPU/h"])[0]
    assert each.quote(4, basis="spot").usd_per_hour == 12


def test_overrides_of_several_platforms():
    platforms = {"h100_sxm": H100, "mine": own(price="2.10 USD/GPU/h", name="mine")}
    changed, moved = override_platforms(
        platforms, ["mine.price=1 USD/GPU/h", "link.pcie.latency=+50%"]
    )
    assert changed["h100_sxm"].quote(8) == H100.quote(8)
    assert changed["mine"].quote(8).usd_per_hour == 8
    assert {figure.platform for figure in moved} == {"h100_sxm", "mine"}
    with pytest.raises(UnknownNameError, match="mine"):
        override_platforms(platforms, ["mune.price=1 USD/GPU/h"])
    with pytest.raises(UnknownNameError, match="nvswitch"):
        override_platforms(platforms, ["link.nvswich.latency=1 us"])


@pytest.mark.parametrize(
    ("name", "line", "edited", "path"),
    [
        ("h100_sxm", "bandwidth: 450 GB/s", "bandwidth: 45 GB/s", "link.bandwidth=45GB/s"),
        ("l40s_pcie", "latency: 4 us", "latency: 4000 us", "link.latency=4000us"),
    ],
)
def test_a_link_that_is_edited_in_a_file_is_as_one_that_is_overridden(
    tmp_path, name, line, edited, path
):
    """What was measured is of the link as it was, wherever another figure is given."""
    text = (ROOT / "platforms" / f"{name}.yaml").read_text()
    assert text.count(line) == 1
    file = tmp_path / "mine.yaml"
    file.write_text(text.replace(line, edited))
    built_in = load_platform(name)
    overridden, _ = override_platform(built_in, [path])
    for ranks in (2, 3, 8):
        for size_bytes in (1e3, 1e6, 1e9):
            before_s = built_in.collective_time("all_reduce", size_bytes, ranks)
            edited_s = load_platform(file).collective_time("all_reduce", size_bytes, ranks)
            assert edited_s == overridden.collective_time("all_reduce", size_bytes, ranks)
            assert edited_s > before_s
