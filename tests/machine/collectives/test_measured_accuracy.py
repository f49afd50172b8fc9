"""Eight devices predicted from two and four, on published nccl-tests of whole machines."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.folders import DATA
from dse.machine.collectives import collective_time_s
from dse.machine.fits import CollectiveCalibration, HeldOut, Provenance, fit_size_curve
from dse.machine.platforms import load_platform

#: Names in the tables, by ours.
OPS = {
    "all_reduce": "all_reduce",
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "all_to_all": "alltoall",
}
VALUE_BYTES = {"half": 2, "int8": 1}
PLATFORMS = {"a100": "a100_sxm_80", "h100": "h100_sxm", "h200": "h200_sxm"}

pytestmark = pytest.mark.skipif(
    not (DATA / "nccl").is_dir(),
    reason=f"no measurements in {DATA / 'nccl'}; set DSE_MEASUREMENTS to their folder",
)


def load(device: str) -> dict[tuple[str, int], tuple[np.ndarray, np.ndarray]]:
    """Message bytes and seconds by operation and number of devices."""
    import pandas as pd

    table = pd.read_parquet(DATA / "nccl" / f"{device}_sxm_8.parquet")
    # Sizes are in elements, latencies in milliseconds.
    nbytes = table.message_size * table.nccl_dtype.map(VALUE_BYTES)
    measured = {}
    for op, name in OPS.items():
        for ranks in (2, 4, 8):
            rows = (table.op_name == name) & (table.num_gpus == ranks)
            measured[op, ranks] = (
                nbytes[rows].to_numpy(float),
                table.latency[rows].to_numpy() / 1e3,
            )
    return measured


def errors_on_eight(device: str, fitted_on: tuple[int, ...]) -> np.ndarray:
    measured = load(device)
    calibrations = tuple(
        CollectiveCalibration(
            op,
            ranks,
            fit_size_curve(*measured[op, ranks]),
            0.05,
            Provenance(device, device, "nccl-tests", "unknown", len(measured[op, ranks][0])),
            HeldOut(1, 0.05, 0.05, 0.05, "not used"),
        )
        for op in OPS
        for ranks in fitted_on
    )
    cluster = load_platform(PLATFORMS[device]).cluster(8)
    cluster = replace(cluster, link=replace(cluster.link, calibrations=calibrations))
    errors = []
    for op in OPS:
        nbytes, seconds = measured[op, 8]
        errors.append(np.abs(collective_time_s(cluster, op, nbytes) / seconds - 1))
    return np.concatenate(errors)


@pytest.mark.parametrize("device", PLATFORMS)
def test_eight_devices_from_two_and_four(device):
    assert errors_on_eight(device, (2, 4)).mean() < 0.10


@pytest.mark.parametrize("device", PLATFORMS)
def test_eight_devices_from_four(device):
    assert errors_on_eight(device, (4,)).mean() < 0.15


@pytest.mark.parametrize("device", PLATFORMS)
def test_eight_devices_by_the_formulas(device):
    assert errors_on_eight(device, ()).mean() < 0.15
