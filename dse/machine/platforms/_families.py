"""What the times of a platform come from: operator families that are fitted, and the others."""

from __future__ import annotations

from dataclasses import dataclass
import math
from typing import TYPE_CHECKING, TypeAlias

from dse.machine.collectives import curves_in_use

if TYPE_CHECKING:
    from dse.machine.fits import (
        CollectiveCalibration,
        KernelCalibration,
        NetworkCalibration,
    )
    from dse.machine.platforms._platform import Platform

    _Fitted: TypeAlias = KernelCalibration | CollectiveCalibration | NetworkCalibration

#: Families of operators; other kernels of the dense model are `other kernels`.
FAMILIES = (
    "gemm",
    "attention",
    "experts",
    "embedding",
    "copies",
    "other kernels",
    "collectives",
    "networks",
)
_STARTS = {
    "gemm": "gemm",
    "attention": "attention",
    **dict.fromkeys(("experts", "expert"), "experts"),
    "embedding": "embedding",
    "memcpy": "copies",
}


@dataclass(frozen=True, slots=True)
class FittedFamily:
    """Fitted models of one operator family, or of the collectives, of one platform.

    Attributes:
        family: One of `FAMILIES`.
        models: Number of fitted models.
        points: Held-out points of all models.
        gmae: Geometric mean of the absolute relative errors on held-out points.
        worst_gmae: The same for the worst model.
        transferred: Whether all were measured on another device.
        as_of: Date of the oldest measurement, as in the file.
    """

    family: str
    models: int
    points: int
    gmae: float
    worst_gmae: float
    transferred: bool
    as_of: str


def fitted_families(platform: Platform) -> tuple[FittedFamily, ...]:
    """Returns the families of a platform that are fitted to measurements; others use formulas."""
    models: dict[str, list[_Fitted]] = {}
    for kernel in platform.device.calibrations:
        family = _STARTS.get(kernel.op.partition("_")[0], "other kernels")
        models.setdefault(family, []).append(kernel)
    for link in platform.links:
        models.setdefault("collectives", []).extend(curves_in_use(link))
    for network in platform.networks:
        models.setdefault("networks", []).extend(network.calibrations)
    name = platform.device.name
    return tuple(_family(one, models[one], name) for one in FAMILIES if models.get(one))


def _family(family: str, models: list[_Fitted], device: str) -> FittedFamily:
    # One fit may serve several precisions: its error counts once.
    errors = {
        (model.provenance.name, getattr(model, "op", ""), getattr(model, "ranks", 0)): (
            model.held_out
        )
        for model in models
    }.values()
    points = sum(error.points for error in errors)
    # The geometric mean over all points; perfect fits count as 0.01 %.
    logs = sum(error.points * math.log(max(error.gmae, 1e-4)) for error in errors)
    return FittedFamily(
        family=family,
        models=len(models),
        points=points,
        gmae=math.exp(logs / points),
        worst_gmae=max(error.gmae for error in errors),
        transferred=all(
            model.transferred and model.provenance.device != device for model in models
        ),
        as_of=min(model.provenance.as_of for model in models),
    )


def by_formulas(families: tuple[FittedFamily, ...]) -> tuple[str, ...]:
    """Returns the families that are not among the fitted ones."""
    fitted = {one.family for one in families}
    return tuple(family for family in FAMILIES if family not in fitted)
