"""Finder of operators: from a recorded signature to a callable.

Names come from untrusted files. They are looked up among the operators that torch has registered,
and nothing is imported or evaluated for them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
import re
from typing import TYPE_CHECKING, Any

from dse.errors import ConfigError, DseError
from dse.trace.replay._registry import NotReplayableError, OperatorCall, builder_of
from dse.trace.replay.plan._substitutes import is_lookup, lookup_builder, substitute_for
from dse.trace.replay.read import Device, Opaque, TensorRef, argument_names, tensors_in

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dse.trace.replay._registry import OperatorBuilder
    from dse.trace.replay.read import Recorded

_SIGNATURE = re.compile(r"^([A-Za-z_]\w*::[A-Za-z_]\w*)(?:\.(\w+))?\(")
_MAX_SIGNATURE = 20_000
#: Operators whose text arguments name files, or are printed.
_OUTSIDE = frozenset({"aten::from_file", "aten::_print"})
#: Kinds of arguments for which None is as good as what was recorded.
_LEFT_OUT = ("Generator",)


@dataclass(frozen=True, slots=True)
class Callee:
    """The callable of a recorded call.

    Attributes:
        function: Takes `positional` in order and `keywords` by name.
        positional: Arguments; tensors as `TensorRef`.
        keywords: Arguments that must be named.
        kind: `torch`, `registered` or `substitute`.
        writes: Arguments that it may write to.
        names: Names of `positional`, as far as they are known.
    """

    function: Callable[..., Any]
    positional: tuple[Recorded, ...]
    keywords: tuple[tuple[str, Recorded], ...]
    kind: str
    writes: tuple[TensorRef, ...] = ()
    names: tuple[str, ...] = ()


def base_name(schema: str) -> str:
    """Returns `aten::add` of `aten::add.Tensor(…)`, or an empty string."""
    return full_name(schema).partition(".")[0]


def full_name(schema: str) -> str:
    """Returns `aten::add.Tensor` of `aten::add.Tensor(…)`, or an empty string."""
    found = _SIGNATURE.match(schema) if len(schema) <= _MAX_SIGNATURE else None
    if found is None:
        return ""
    return f"{found.group(1)}.{found.group(2)}" if found.group(2) else found.group(1)


class OperatorFinder:
    """Finds callables for one device.

    Args:
        torch: The torch module.
        device: `cpu` or `cuda`.
    """

    def __init__(self, torch: Any, device: str) -> None:
        self._torch = torch
        self._device = device
        key = "CUDA" if device == "cuda" else "CPU"
        self._keys = key, f"Sparse{key}"
        self._known = frozenset(torch._C._dispatch_get_all_op_names())
        self.reason = lru_cache(maxsize=None)(self._reason)

    def _reason(self, schema: str) -> str:
        """Returns why no call of an operator can be replayed here; empty if some can."""
        name = full_name(schema)
        if not name:
            return "its signature cannot be read"
        if base_name(schema) in _OUTSIDE:
            return "it reaches files or the terminal, which no trace may"
        if name not in self._known:
            library = name.partition("::")[0]
            if any(known.startswith(f"{library}::") for known in self._known):
                return f"torch {self._torch.__version__} has no operator of this name and overload"
            return f"the library `{library}` is not loaded"
        has = self._torch._C._dispatch_has_computed_kernel_for_dispatch_key
        if not any(has(name, key) for key in self._keys):
            return f"torch {self._torch.__version__} has no kernel of it for {self._device}"
        return ""

    def callable_here(self, schema: str) -> bool:
        """Returns whether some call of this signature can be replayed."""
        name = base_name(schema)
        if builder_of(name) is not None or substitute_for(name, self._device) is not None:
            return True
        return not self.reason(schema)

    def is_composite(self, schema: str) -> bool:
        """Returns whether torch runs the operator only as a sequence of other operators."""
        name = full_name(schema)
        return name in self._known and bool(
            self._torch._C._dispatch_has_kernel_for_dispatch_key(name, "CompositeImplicitAutograd")
        )

    def find(
        self, schema: str, inputs: Sequence[Recorded], outputs: Sequence[Recorded]
    ) -> Callee | str:
        """Returns what to call, or why nothing can be called.

        Args:
            schema: Recorded signature of the operator.
            inputs: Its recorded arguments.
            outputs: Its recorded results.

        Raises:
            ConfigError: The builder that a user registered for the operator failed.
        """
        name = base_name(schema)
        call = OperatorCall(name, schema, tuple(inputs), tuple(outputs), self._device)
        builder, kind = builder_of(name), "registered"
        if builder is None:
            builder, kind = self._substitute(name, schema), "substitute"
        if builder is not None:
            try:
                function = builder(call)
            except NotReplayableError as error:
                return str(error)
            except DseError:
                raise
            except Exception as error:
                raise ConfigError(
                    f"the builder of `{name}` failed: {type(error).__name__}: {error}; raise "
                    "NotReplayableError for calls that it cannot rebuild"
                ) from error
            given = tuple(None if isinstance(value, Opaque) else value for value in inputs)
            names = tuple(argument_names(schema))
            return Callee(function, given, (), kind, tuple(tensors_in(inputs)), names)
        reason = self.reason(schema)
        if reason:
            return reason
        instead = {"copy": True} if name == "aten::to" and _copies(inputs, outputs) else {}
        return self._matched(self._overload(full_name(schema)), schema, inputs, instead)

    def _substitute(self, name: str, schema: str) -> OperatorBuilder | None:
        if is_lookup(name) and self.reason(schema):
            return lookup_builder
        return substitute_for(name, self._device)

    def _overload(self, name: str) -> Any:
        library, _, rest = name.partition("::")
        packet, _, overload = rest.partition(".")
        found = getattr(getattr(self._torch.ops, library), packet)
        return getattr(found, overload or "default")

    def _matched(
        self, overload: Any, schema: str, inputs: Sequence[Recorded], instead: dict[str, Recorded]
    ) -> Callee | str:
        """Matches arguments to the operator of the installed torch."""
        wanted = overload._schema.arguments
        names = self._names(schema, len(inputs))
        if names is None:
            names = tuple(argument.name for argument in wanted)[: len(inputs)]
            if len(names) < len(inputs):
                return "its signature has fewer arguments than were recorded"
        given = {**dict(zip(names, inputs, strict=False)), **instead}
        positional: list[Recorded] = []
        keywords: list[tuple[str, Recorded]] = []
        writes: list[TensorRef] = []
        by_name = False
        for argument in wanted:
            if argument.name not in given:
                if not argument.has_default_value():
                    return f"its argument `{argument.name}` is not in the trace"
                by_name = True
                continue
            value = given.pop(argument.name)
            kind = str(argument.real_type)
            converted = self._converted(value, kind)
            if isinstance(converted, Opaque):
                return f"its argument `{argument.name}` is a {converted.kind}, which traces lack"
            if argument.alias_info is not None and argument.alias_info.is_write:
                writes += tensors_in([converted])
            if argument.kwarg_only or by_name:
                keywords.append((argument.name, converted))
            else:
                positional.append(converted)
        if any(value is not None for value in given.values()):
            return f"torch {self._torch.__version__} has no argument `{next(iter(given))}` of it"
        placed = tuple(argument.name for argument in wanted)[: len(positional)]
        return Callee(overload, tuple(positional), tuple(keywords), "torch", tuple(writes), placed)

    def _names(self, schema: str, count: int) -> tuple[str, ...] | None:
        try:
            parsed = self._torch._C.parse_schema(schema)
        except RuntimeError:
            return None
        names = tuple(str(argument.name) for argument in parsed.arguments)
        return names if len(names) >= count else None

    def _converted(self, value: Recorded, kind: str) -> Recorded:
        if isinstance(value, Opaque):
            return None if any(name in kind for name in _LEFT_OUT) else value
        if isinstance(value, Device):
            return self._torch.device(mapped_device(value.name, self._device))
        if isinstance(value, list):
            converted = [self._converted(one, kind) for one in value]
            return next((one for one in converted if isinstance(one, Opaque)), converted)
        return value


def _copies(inputs: Sequence[Recorded], outputs: Sequence[Recorded]) -> bool:
    """Returns whether a call returned new memory, as copies between devices do."""
    taken = {ref.storage for ref in tensors_in(inputs)}
    return any(ref.storage not in taken for ref in tensors_in(outputs))


def mapped_device(recorded: str, device: str) -> str:
    """Returns where a tensor of a recorded device lives in the replay."""
    return "cpu" if device == "cpu" or recorded in ("", "cpu", "meta") else "cuda"


def tensors_of(callee: Callee) -> list[TensorRef]:
    """Returns the tensors that a call takes, in order."""
    return list(tensors_in([*callee.positional, *(value for _, value in callee.keywords)]))
