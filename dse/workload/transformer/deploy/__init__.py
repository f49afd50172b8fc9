"""Forms in which training frameworks take a configuration, one in each module.

Adding a module here that defines a :class:`DeployFormat` registers it.
"""

from __future__ import annotations

from importlib import import_module
import pkgutil

from dse.workload.transformer._deploy_format import DeployFormat


def _found() -> dict[str, DeployFormat]:
    modules = (import_module(f"{__name__}.{one.name}") for one in pkgutil.iter_modules(__path__))
    formats = [one for module in modules for one in vars(module).values()]
    found = {one.name: one for one in formats if isinstance(one, DeployFormat)}
    return dict(sorted(found.items()))


#: All forms by name.
DEPLOY_FORMATS = _found()

__all__ = ["DEPLOY_FORMATS"]
