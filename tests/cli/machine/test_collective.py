"""`dse collective` from the command line, and its functions."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

import dse as library
from dse.errors import ConfigError, UnknownNameError
from dse.report.picture import collective_svg
from tests.cli.running import answer, dse

ASKED = ("collective", "--platform", "h100_sxm")


def test_one_point_with_what_decides_it():
    options = ("--op", "all_to_all", "--size", "64MiB", "--world-size", 128)
    document = answer(*ASKED, *options)
    (point,) = document["points"]
    assert (point["op"], point["size_bytes"], point["ranks"]) == ("all_to_all", 2**26, 128)
    assert point["low_s"] < point["time_s"] < point["high_s"]
    assert point["decided_by"] == "between"
    rate = point["algorithm_bandwidth_bytes_per_s"]
    assert point["bus_bandwidth_bytes_per_s"] == pytest.approx(127 / 128 * rate)
    shown = dse(*ASKED, *options)
    assert shown.returncode == 0
    assert "bus bandwidth" in shown.stdout
    found = library.collective("all_to_all", "h100_sxm", size="64 MiB", world_size=128)
    assert found.time_s == point["time_s"]


def test_tables_over_sizes_and_ranks():
    document = answer(*ASKED, "--op", "all_reduce")
    ranks = {point["ranks"] for point in document["points"]}
    sizes = {point["size_bytes"] for point in document["points"]}
    assert ranks == {2, 4, 8, 16, 32, 64, 128, 256}
    assert len(document["points"]) == len(ranks) * len(sizes)
    at_one_size = answer(*ASKED, "--op", "all_reduce", "--size", "1GiB")
    assert {point["ranks"] for point in at_one_size["points"]} == ranks
    of_two_nodes = answer(*ASKED, "--op", "all_reduce", "--world-size", 16)
    assert {point["size_bytes"] for point in of_two_nodes["points"]} == sizes
    shown = dse(*ASKED, "--op", "all_reduce").stdout
    assert "256" in shown.split()
    assert "infiniband_ndr400" in shown


def test_a_better_network_is_no_worse():
    options = ("--op", "all_gather", "--size", "64MiB", "--world-size", 32)
    as_it_is, faster, other = (
        answer(*ASKED, *options, *extra)["points"][0]["time_s"]
        for extra in ((), ("--set", "network.bandwidth=*2"), ("--network", "ethernet_100g"))
    )
    assert faster < as_it_is < other


def test_the_picture_is_a_line_for_each_number_of_ranks(tmp_path):
    path = tmp_path / "plot.svg"
    done = dse(*ASKED, "--op", "all_reduce", "--plot", path)
    assert done.returncode == 0, done.stderr
    table = library.collective_table("all_reduce", "h100_sxm")
    text = path.read_text()
    assert text == collective_svg(table)
    root = ElementTree.fromstring(text)
    assert root.tag.endswith("svg")
    assert text.count(" ranks</text>") == len(table.world_sizes)
    # Also with one size or one number of ranks.
    assert dse(*ASKED, "--op", "all_reduce", "--size", "1MiB", "--world-size", 2, "--plot", path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--op", "all_reduced"), "all_reduce"),
        (("--op", "all_reduce", "--size", "64"), "unit"),
        (("--op", "all_reduce", "--size", "0 B"), "more than 0"),
        (("--op", "all_reduce", "--world-size", 12), "12"),
        (("--op", "all_reduce", "--network", "carrier pigeons"), "carrier pigeons"),
        (("--op", "all_reduce", "--plot", "plot.png"), ".svg"),
    ],
)
def test_impossible_questions_are_refused(options, message):
    done = dse(*ASKED, *options)
    assert done.returncode == 2
    assert message in done.stderr


def test_functions_refuse_what_the_command_does():
    with pytest.raises(UnknownNameError):
        library.collective("all_reduced", "h100_sxm", size=1e6, world_size=8)
    with pytest.raises(ConfigError):
        library.collective("all_reduce", "h100_sxm", size=0, world_size=8)
    with pytest.raises(ConfigError):
        library.collective_table("all_reduce", "h100_sxm", world_sizes=(1,))


def test_functions_take_any_spelling_and_platform():
    derived = {"from": "h100_sxm", "network": {"latency": "50 us"}}
    slow = library.collective("AllReduce", derived, size=1e6, world_size=16)
    assert (
        slow.time_s > library.collective("all_reduce", "h100_sxm", size=1e6, world_size=16).time_s
    )
