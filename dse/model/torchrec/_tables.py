"""Tables of a live module: configurations, update rules and names."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
import reprlib
from typing import TYPE_CHECKING, Any

from dse.errors import ConfigError
from dse.model._common import Optimizer
from dse.model.dlrm import DataType

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Classes of optimizers of tables, in TorchRec and torch, and the rule that each is.
_RULES = {
    "SGD": Optimizer.SGD,
    "RowWiseAdagrad": Optimizer.ROWWISE_ADAGRAD,
    "Adagrad": Optimizer.ADAGRAD,
    "Adam": Optimizer.ADAM,
    "AdamW": Optimizer.ADAM,
    "PartialRowWiseAdam": Optimizer.PARTIAL_ROWWISE_ADAM,
    "LAMB": Optimizer.LAMB,
    "PartialRowWiseLAMB": Optimizer.PARTIAL_ROWWISE_LAMB,
    "LarsSGD": Optimizer.LARS_SGD,
}

#: What a collection calls its tables, with and without pooling.
_BAGS, _ROWS = "embedding_bag_configs", "embedding_configs"


@dataclass(frozen=True, slots=True)
class LiveTable:
    """One table of a module.

    Attributes:
        name: Its name; after the end of its module's path where several modules have it.
        path: Path of its collection in the module.
        rows: Rows.
        dim: Columns.
        features: Names of the features that look it up.
        data_type: Storage type.
        weighted: Whether lookups have weights.
        pooled: Whether the rows of a bag are summed (`EmbeddingBagCollection`); otherwise each is
            a position of a sequence (`EmbeddingCollection`).
    """

    name: str
    path: str
    rows: int
    dim: int
    features: tuple[str, ...]
    data_type: DataType
    weighted: bool
    pooled: bool


def live_tables(module: Any) -> tuple[LiveTable, ...]:
    """Returns the tables of all collections of a module.

    Raises:
        ConfigError: It is no module, it has no collection, or a table is of a type that cannot
            be predicted.
    """
    if isinstance(module, type) or not hasattr(module, "named_modules"):
        raise ConfigError(
            f"expected a torch module with an EmbeddingBagCollection or EmbeddingCollection, such "
            f"as a model of your training script; found {_shown(module)}"
        )
    found = [
        _table(path, config, weighted=weighted, pooled=pooled)
        for path, collection in outer_collections(module)
        for pooled in (hasattr(collection, _BAGS),)
        for weighted in (bool(_called(collection, "is_weighted")),)
        for config in _called(collection, _BAGS if pooled else _ROWS)
    ]
    if not found:
        raise ConfigError(
            f"{type(module).__name__} has no tables in an EmbeddingBagCollection or "
            "EmbeddingCollection; give the module that has, before it is sharded"
        )
    times = Counter(table.name for table in found)
    return tuple(table if times[table.name] == 1 else _qualified(table) for table in found)


def _shown(value: object) -> str:
    """Returns what is not a module, for a message."""
    if isinstance(value, type):
        return f"the class {value.__qualname__}; make an instance"
    return f"{reprlib.repr(value)}, of type {type(value).__name__}"


def table_rule(module: Any) -> Optimizer | None:
    """Returns the update rule of the tables, where `apply_optimizer_in_backward` has set one.

    Raises:
        ConfigError: Rules differ, or one cannot be predicted.
    """
    names = {
        rule.__name__
        for _, collection in outer_collections(module)
        for parameter in collection.parameters()
        for rule in getattr(parameter, "_optimizer_classes", ())
    }
    if not names:
        return None
    if len(names) > 1:
        raise ConfigError(
            f"tables are updated by {', '.join(sorted(names))}; one rule for all is predicted"
        )
    name = names.pop()
    if name not in _RULES:
        raise ConfigError(f"`{name}` updates the tables; expected one of {', '.join(_RULES)}")
    return _RULES[name]


def in_collections(module: Any) -> frozenset[int]:
    """Returns the identities of the parameters that belong to tables."""
    return frozenset(
        id(parameter)
        for _, collection in outer_collections(module)
        for parameter in collection.parameters()
    )


def outer_collections(module: Any) -> Iterator[tuple[str, Any]]:
    """Yields the outermost collections of tables with their paths."""
    taken: list[str] = []
    for path, one in module.named_modules():
        inside = any(path.startswith(f"{outer}.") or not outer for outer in taken)
        is_one = hasattr(one, _BAGS) or hasattr(one, _ROWS)
        if is_one and not inside:
            taken.append(path)
            yield path, one


def _called(one: Any, name: str) -> Any:
    """A method's result or a property's value; wrapped collections have either."""
    value = getattr(one, name, None)
    return value() if callable(value) else value


def _table(path: str, config: Any, *, weighted: bool, pooled: bool) -> LiveTable:
    kind = str(getattr(config.data_type, "name", config.data_type)).lower()
    if kind not in [*DataType]:
        raise ConfigError(
            f"table `{config.name}` is stored as {kind}; expected one of {', '.join(DataType)}"
        )
    return LiveTable(
        name=config.name,
        path=path,
        rows=int(config.num_embeddings),
        dim=int(config.embedding_dim),
        features=tuple(config.feature_names),
        data_type=DataType(kind),
        weighted=weighted,
        pooled=pooled,
    )


def _qualified(table: LiveTable) -> LiveTable:
    end = table.path.rpartition(".")[2]
    return replace(table, name=f"{end}.{table.name}" if end else table.name)
