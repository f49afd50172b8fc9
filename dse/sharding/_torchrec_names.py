"""Which table of a model is which table of which TorchRec module.

TorchRec names a table by the path of its module and its own name, and names may repeat over
modules. A model knows names only. A table is therefore found by its own name where that is unique
in the plan, or by its name behind the end of the module's path (`user.t0`, `arch.user.t0`), which
stays right when a wrapper puts something in front of the path.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

    from dse.sharding._torchrec_layout import TorchRecParameter


def qualified_names(module: str, table: str) -> list[str]:
    """Returns the names by which a model may call a table, the longest first, its own last."""
    parts = module.split(".") if module else []
    return [".".join((*parts[start:], table)) for start in range(len(parts) + 1)]


def own_name(module: str, name: str) -> str:
    """Returns what the module itself calls the table that a model calls `name`."""
    parts = module.split(".") if module else []
    for start in range(len(parts)):
        prefix = ".".join(parts[start:]) + "."
        if name.startswith(prefix) and len(name) > len(prefix):
            return name[len(prefix) :]
    return name


def model_names(
    parameters: tuple[TorchRecParameter, ...], known: Collection[str] | None
) -> tuple[list[str], list[str]]:
    """Finds the model's names of a plan's tables.

    Args:
        parameters: The plan's tables.
        known: Names of the model's tables; ``None`` when there is no model.

    Returns:
        A name for each of the parameters in turn (without a model its own name, with the whole
        path where names repeat), and a problem in words for each name that repeats and that the
        model does not qualify.
    """
    modules: dict[str, list[str]] = defaultdict(list)
    for parameter in parameters:
        modules[parameter.table].append(parameter.module)
    names, problems = [], []
    for parameter in parameters:
        offered = qualified_names(parameter.module, parameter.table)
        repeated = len(modules[parameter.table]) > 1
        usable = offered[:-1] if repeated and len(offered) > 1 else offered
        plain = offered[0] if repeated else parameter.table
        found = None if known is None else next((one for one in usable if one in known), None)
        names.append(plain if found is None else found)
    if known is not None:
        for table, paths in modules.items():
            if len(paths) > 1 and table in known:
                problems.append(
                    f"the plan has table `{table}` in modules "
                    + " and ".join(f"`{path}`" for path in paths)
                    + ", so the model has to name each by its module, for example "
                    + f"`{qualified_names(paths[0], table)[-2:][0]}`"
                )
    return names, problems
