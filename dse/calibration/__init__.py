"""Calibration: microbenchmarks, measurements, and fits with held-out errors."""

from __future__ import annotations

from dse.calibration._attention import fit_attention
from dse.calibration._collectives import (
    check_one_domain,
    fit_collectives,
    held_out_sizes,
    notes_on_integers,
)
from dse.calibration._embedding import fit_embedding
from dse.calibration._experts import fit_exchange, fit_experts
from dse.calibration._gemm import GemmSplit, fit_gemm, split_gemm
from dse.calibration._machine import MachineCalibration, fit_machine
from dse.calibration._network import fit_network
from dse.calibration._origin import FitOrigin
from dse.calibration._write import write_machine

__all__ = [
    "FitOrigin",
    "GemmSplit",
    "MachineCalibration",
    "check_one_domain",
    "fit_attention",
    "fit_collectives",
    "fit_embedding",
    "fit_exchange",
    "fit_experts",
    "fit_gemm",
    "fit_machine",
    "fit_network",
    "held_out_sizes",
    "notes_on_integers",
    "split_gemm",
    "write_machine",
]
