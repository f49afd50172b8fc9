"""Calibrations of made-up devices."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dse.machine.fits import HeldOut, KernelCalibration, Provenance, SizeRange, log_size_names

PROVENANCE = Provenance("test", "test device", "made for tests", "2026-01", 16)
HELD_OUT = HeldOut(points=4, gmae=0.05, mape=0.05, p90=0.1, rule="made for tests")


@dataclass(frozen=True)
class ConstantRatio:
    """The same ratio everywhere."""

    feature_names: tuple[str, ...]
    ratio: float

    def log_ratio(self, features):
        return np.full(len(features), np.log(self.ratio))


def calibration(op, ranges, *, curve=None, ratio=1.0, spread=0.05, precisions=()):
    """A calibration over size logarithms; `ranges` gives the low and high end of each size."""
    names = tuple(ranges)
    return KernelCalibration(
        op=op,
        precisions=precisions,
        sizes=tuple(SizeRange(name, *ends) for name, ends in ranges.items()),
        curve=curve or ConstantRatio(log_size_names(names), ratio),
        spread=spread,
        provenance=PROVENANCE,
        held_out=HELD_OUT,
    )
