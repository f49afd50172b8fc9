"""Named optimizations, one in each module; adding a module here registers it."""

from __future__ import annotations

from importlib import import_module
import pkgutil
from typing import get_args

from dse.trace.whatif.core import Optimization


def _found() -> dict[str, type[Optimization]]:
    found: dict[str, type[Optimization]] = {}
    for module in pkgutil.iter_modules(__path__):
        for kind in vars(import_module(f"{__name__}.{module.name}")).values():
            if isinstance(kind, type) and issubclass(kind, Optimization):
                names = get_args(kind.model_fields["optimization"].annotation)
                found |= dict.fromkeys(names, kind)
    return dict(sorted(found.items()))


#: All optimizations by name.
OPTIMIZATIONS = _found()

__all__ = ["OPTIMIZATIONS"]
