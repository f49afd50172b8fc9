"""Trainers of real runs, one in each package or module here.

Adding a module or package here that defines a :class:`dse.validation.Trainer` registers it. It is
imported with this package, so it imports torch and other libraries inside functions.
"""

from __future__ import annotations

from importlib import import_module
import pkgutil
from typing import TYPE_CHECKING, Any

from dse.errors import ConfigError
from dse.validation._protocol import Trainer

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["TRAINERS", "find_trainer"]


def _found() -> dict[str, Trainer[Any]]:
    modules = (import_module(f"{__name__}.{one.name}") for one in pkgutil.iter_modules(__path__))
    kinds = [one for module in modules for one in vars(module).values() if isinstance(one, type)]
    trainers = [kind() for kind in kinds if issubclass(kind, Trainer) and hasattr(kind, "name")]
    return {one.name: one for one in sorted(trainers, key=lambda one: one.name)}


#: All trainers by name.
TRAINERS: Mapping[str, Trainer[Any]] = _found()


def find_trainer(name: str, kind: str | None = None) -> Trainer[Any]:
    """Returns a trainer.

    Args:
        name: Its name.
        kind: Kind of workload that it has to train; None for any.

    Raises:
        ConfigError: There is none of this name for this kind of workload.
    """
    known = [one.name for one in TRAINERS.values() if kind in (None, one.kind)]
    if name not in known:
        of_kind = "" if kind is None else f" of `kind: {kind}`"
        raise ConfigError(
            f"trainer `{name}`: expected one of {', '.join(known)}, which train models{of_kind}",
            key="trainer",
            value=name,
        )
    return TRAINERS[name]
