"""Fitting networks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dse.calibration import FitOrigin, fit_network
from dse.calibration.measurements import CollectiveSamples, joined
from dse.errors import CalibrationError
from dse.machine.collectives import collective_time_s
from dse.machine.fits import HeldOut, NetworkCalibration, NetworkModel, Provenance
from dse.machine.platforms import load_platform

ORIGIN = FitOrigin("made_up", "made-up device", "a law")
CLUSTER = load_platform("h100_sxm").cluster(16, network="infiniband_ndr400")
TRUE = NetworkModel(0.7, 0.5, 0.6, 2.0, 0.2, 1.8)
SIZES = 2 ** np.arange(10, 32)


def with_model(nodes: int, model: NetworkModel):
    calibration = NetworkCalibration(
        model,
        ("all_reduce", "all_to_all"),
        (1.0, 1e10),
        (2, 64),
        0.1,
        Provenance("true", "made-up device", "a law", "unknown", 1),
        HeldOut(1, 0.1, 0.1, 0.1, "none"),
    )
    network = replace(CLUSTER.network, calibrations=(calibration,))
    return replace(CLUSTER, network=network, world_size=8 * nodes)


def samples(
    op: str, nodes: tuple[int, ...], *, scale: float = 1.0, stated: bool = True, per_node: int = 8
) -> CollectiveSamples:
    counts = np.repeat(nodes, len(SIZES))
    time_s = np.concatenate(
        [collective_time_s(with_model(count, TRUE), op, SIZES) for count in nodes]
    )
    return CollectiveSamples(
        op=np.full(len(counts), op),
        ranks=counts * per_node,
        nodes=counts if stated else np.zeros_like(counts),
        size_bytes=np.tile(SIZES, len(nodes)),
        time_s=scale * time_s,
        source_rows=np.arange(len(counts)) + 1,
        dtype=np.full(len(counts), ""),
        nccl=np.full(len(counts), ""),
    )


def test_the_figures_of_a_made_up_network_are_found():
    measured = [samples("all_reduce", (2, 4, 16)), samples("all_to_all", (2, 4, 16))]
    fitted = fit_network(measured, CLUSTER, ORIGIN)
    assert fitted.ops == ("all_reduce", "all_to_all")
    assert (fitted.nodes, fitted.size_bytes) == ((2, 16), (1024.0, 2.0**31))
    assert fitted.held_out.points == fitted.provenance.points == 6 * len(SIZES)
    assert fitted.held_out.mape < 0.02
    assert fitted.model.relayed_share == pytest.approx(TRUE.relayed_share, rel=0.05)
    assert fitted.model.direct_share == pytest.approx(TRUE.direct_share, rel=0.05)
    assert fitted.model.message_hops == pytest.approx(TRUE.message_hops, rel=0.1)


def test_two_nodes_are_checked_on_every_other_size():
    fitted = fit_network([samples("all_reduce", (2,))], CLUSTER, ORIGIN)
    assert fitted.held_out.points == len(SIZES) // 2
    assert fitted.held_out.mape < 0.02


def test_full_nodes_are_assumed_where_the_file_does_not_say():
    stated, assumed = (
        fit_network([samples("all_reduce", (2,), stated=stated)], CLUSTER, ORIGIN)
        for stated in (True, False)
    )
    assert stated == assumed


def test_what_was_not_measured_follows_the_rings():
    """A slow network is slow for exchanges, too."""
    ring, slower = (
        fit_network([samples("all_reduce", (2, 4, 16), scale=scale)], CLUSTER, ORIGIN)
        for scale in (1.0, 3.0)
    )
    assert slower.model.direct_share < 0.6 * ring.model.direct_share


def test_held_out_points_are_not_fitted():
    whole = samples("all_reduce", (2, 4, 16))
    wrong = replace(whole, time_s=np.where(whole.nodes == 16, 9.0, 1.0) * whole.time_s)
    fitted = fit_network([wrong], CLUSTER, ORIGIN, wrong.nodes == 16)
    assert fitted.model.relayed_share == pytest.approx(TRUE.relayed_share, rel=0.05)
    assert fitted.held_out.points == len(SIZES)
    assert fitted.held_out.mape > 0.5


def test_times_of_other_numbers_of_nodes_are_refused():
    measured = samples("all_reduce", (2,), stated=False)
    given = replace(measured, nodes=measured.ranks)
    with pytest.raises(CalibrationError, match="16 ranks on 16 nodes"):
        fit_network([given], CLUSTER, ORIGIN)


@pytest.mark.parametrize(
    ("measured", "message"),
    [
        (samples("all_reduce", (1,)), "fit collective"),
        (samples("all_reduce", (2,), per_node=9), "equally"),
        (samples("broadcast", (2,)), "all_reduce, all_gather"),
        (samples("all_reduce", (2,)).select(slice(0, 7)), "at least 8"),
        (samples("all_reduce", (2,), scale=1e3), "unit"),
    ],
)
def test_what_cannot_be_fitted_is_refused(measured, message):
    with pytest.raises(CalibrationError, match=message):
        fit_network([measured], CLUSTER, ORIGIN)


def test_nodes_of_one_pod_have_no_network_between_them():
    pod = load_platform("gb200_nvl72").cluster(8)
    measured = replace(samples("all_reduce", (2,), per_node=4))
    with pytest.raises(CalibrationError, match="one domain"):
        fit_network([measured], pod, ORIGIN)


def test_partly_filled_nodes_are_not_full_ones():
    measured = samples("all_reduce", (2,), stated=False, per_node=6)
    with pytest.raises(CalibrationError, match="12 ranks on 2 nodes"):
        fit_network([measured], CLUSTER, ORIGIN)


@pytest.mark.parametrize("stated", [True, False])
@pytest.mark.parametrize("version", ["", "2.18.1"])
def test_files_that_disagree_are_refused(stated, version):
    first = samples("all_reduce", (2,))
    slower = samples("all_reduce", (2,), scale=1.6, stated=stated)
    slower = replace(slower, nccl=np.full(len(slower), version))
    with pytest.raises(CalibrationError, match="--tolerance"):
        fit_network([first, slower], CLUSTER, ORIGIN)
    assert fit_network([first, slower], CLUSTER, ORIGIN, tolerance=0.7).provenance.points == 44


def test_versions_that_are_taken_together_are_said():
    one = samples("all_reduce", (2,))
    new, old = (replace(one, nccl=np.full(len(one), name)) for name in ("2.27.3", "2.18.1"))
    assert joined([new, new]).notes == joined([new]).notes == ()
    (note,) = joined([new, old]).notes
    assert "2.27.3" in note
    assert "2.18.1" in note
