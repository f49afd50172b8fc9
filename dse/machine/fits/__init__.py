"""Learned functions: what measurements say beyond the physics.

A *kernel calibration* multiplies an analytical reference time by a learned ratio; a *collective
calibration* is a measured curve of time over message size; a *network calibration* holds shares of
a network's line rate and multiples of its latency. All know the range they were fitted in, the
spread of their held-out residuals and where they come from. Nothing here knows devices.
"""

from __future__ import annotations

from dse.machine.fits._calibrations import (
    SPREAD_PER_EFOLD_OUTSIDE,
    CollectiveCalibration,
    Estimate,
    HeldOut,
    KernelCalibration,
    Provenance,
    Ratio,
    RatioCurve,
    SizeRange,
    held_out_errors,
    log_size,
    log_size_names,
    log_spread,
)
from dse.machine.fits._network import NetworkCalibration, NetworkModel
from dse.machine.fits._size_curve import Protocols, SizeCurve, fit_size_curve
from dse.machine.fits._smooth import SmoothCurve, fit_smooth_curve
from dse.machine.fits._terms import TermCurve, fit_term_curve
from dse.machine.fits._trees import TreeCurve, fit_tree_curve
from dse.machine.fits._versions import NCCL_VERSION, NEWEST, is_version, version_parts

__all__ = [
    "NCCL_VERSION",
    "NEWEST",
    "SPREAD_PER_EFOLD_OUTSIDE",
    "CollectiveCalibration",
    "Estimate",
    "HeldOut",
    "KernelCalibration",
    "NetworkCalibration",
    "NetworkModel",
    "Protocols",
    "Provenance",
    "Ratio",
    "RatioCurve",
    "SizeCurve",
    "SizeRange",
    "SmoothCurve",
    "TermCurve",
    "TreeCurve",
    "fit_size_curve",
    "fit_smooth_curve",
    "fit_term_curve",
    "fit_tree_curve",
    "held_out_errors",
    "is_version",
    "log_size",
    "log_size_names",
    "log_spread",
    "version_parts",
]
