"""Operators registered by users: a name in traces, and a builder of its calls."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
import re
import runpy
from typing import TYPE_CHECKING, Any

from dse.errors import ConfigError, DseError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from dse.trace.replay.read._recorded import Recorded


_NAME = re.compile(r"^[A-Za-z_]\w*::[A-Za-z_]\w*$")


class NotReplayableError(DseError):
    """Raised by a builder that declines a call; the message is listed as the reason."""


@dataclass(frozen=True, slots=True)
class OperatorCall:
    """One call of an operator as recorded.

    Attributes:
        name: Name without the overload, for example `fbgemm::permute_2D_sparse_data`.
        schema: Its signature as recorded; empty if there was none.
        inputs: Arguments in the order of the signature: `TensorRef`, numbers, text, None, lists
            of these; `Opaque` for what traces do not hold.
        outputs: Results.
        device: `cpu` or `cuda`: where the replay runs.
    """

    name: str
    schema: str
    inputs: tuple[Recorded, ...]
    outputs: tuple[Recorded, ...]
    device: str


#: Makes the function that is called in the replay. It takes the arguments in the recorded order,
#: tensors in place of `TensorRef` and None in place of `Opaque`, and returns the results
#: in the recorded order: nothing, one value or a tuple.
OperatorBuilder = Callable[[OperatorCall], Callable[..., Any]]

_builders: dict[str, OperatorBuilder] = {}


def register_operator(name: str, builder: OperatorBuilder) -> None:
    """Registers how calls of an operator are replayed; it takes precedence over torch's operators.

    Args:
        name: Name in traces without the overload, for example `mylib::my_lookup`.
        builder: Called once for every recorded call, before anything runs. It raises
            :class:`NotReplayableError` with the reason for a call that it cannot rebuild.

    Raises:
        ConfigError: The name is not of the form `library::operator`, or it is registered.

    Example:
        >>> def build(call):
        ...     rows = call.inputs[0].shape[0]
        ...     return lambda table, indices: table[indices % rows]
        >>> register_operator("mylib::my_lookup", build)
        >>> unregister_operator("mylib::my_lookup")
    """
    if not _NAME.match(name):
        raise ConfigError(f"`{name}` is not the name of an operator, such as mylib::my_lookup")
    if name in _builders:
        raise ConfigError(f"`{name}` is registered already; call unregister_operator first")
    _builders[name] = builder


def unregister_operator(name: str) -> None:
    """Unregisters an operator; nothing happens if it is not registered."""
    _builders.pop(name, None)


def builder_of(name: str) -> OperatorBuilder | None:
    """Returns the builder registered for a name without the overload, if any."""
    return _builders.get(name)


_loaded: set[Path] = set()


def load_operators(files: Sequence[Path]) -> None:
    """Runs Python files that call `register_operator`, each once in a process.

    Args:
        files: Files that the user named; a trace cannot name any.

    Raises:
        ConfigError: A file is not there, or fails.
    """
    for file in files:
        place = file.resolve()
        if place in _loaded:
            continue
        if not place.is_file():
            raise ConfigError(f"{file}: no such file of operators")
        try:
            runpy.run_path(str(place))
        except DseError:
            raise
        except Exception as error:
            raise ConfigError(f"{file}: {type(error).__name__}: {error}") from error
        _loaded.add(place)
