"""Operators of one forward and backward pass, with the shapes of their tensors."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dse._torch import load_torch
from dse.model._common import OperatorKind
from dse.model.torchrec._nested import tensors_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

#: Operators that start no kernel: they make memory, or look at a value.
_NO_KERNEL = frozenset(
    (
        "empty",
        "empty_like",
        "empty_strided",
        "new_empty",
        "new_empty_strided",
        "_local_scalar_dense",
    )
)

#: Operators that read the rows that their indices name, not the whole of their first input.
_GATHERS = ("embedding", "index_select", "gather", "index")


#: Operators of torch with more arithmetic than that of each value.
_NOT_COUNTED = ("convolution", "convolution_backward", "mv", "addmv", "dot", "_cdist_forward")

#: Parts of the names of operators of FBGEMM that do more than bring values to other places.
_ARITHMETIC = ("mm", "conv", "attention", "linear")

#: Products, and their arguments.
_PRODUCTS = {
    "mm": ("self", "mat2"),
    "addmm": ("mat1", "mat2"),
    "_addmm_activation": ("mat1", "mat2"),
    "bmm": ("self", "mat2"),
    "baddbmm": ("batch1", "batch2"),
}

#: Values of a tensor: its dimensions, and what a value counts.
Extent = tuple[tuple[int, ...], float]


@dataclass(slots=True)
class Record:
    """One operator as it ran.

    Attributes:
        name: Module and operator.
        kind: Its family.
        sizes: Sizes of products and attention.
        tensors: What other operators read and write.
        parameters: Parameters whose gradients were complete after it.
    """

    name: str
    kind: OperatorKind
    sizes: dict[str, int] = field(default_factory=dict)
    tensors: list[Extent] = field(default_factory=list)
    parameters: int = 0


class Recorder:
    """Records what runs below autograd.

    Args:
        given: Parameters, buffers and input of the module, which exist without a pass.

    Attributes:
        modules: Which modules are in work, while it is entered.
        phases: Operators before the first vector of a table is read, forward from there on,
            backward until the gradients of all vectors are complete, and after that.
        kept: Sizes of what the forward pass keeps for the backward pass.
        outputs: Values a sample that the module returns, with a gradient.
        unknown: Operators outside of torch, whose arithmetic is not known.
        parameters: Parameters whose gradients never came.
    """

    def __init__(self, given: Iterable[Any]) -> None:
        self._torch = load_torch()
        from torch.utils.module_tracker import ModuleTracker

        self.modules = ModuleTracker()
        self.phases: tuple[list[Record], ...] = ([], [], [], [])
        self.kept: list[Extent] = []
        self.outputs = 0
        self.unknown: set[str] = set()
        # Storages are known by their addresses, so these must not be freed meanwhile.
        self._alive: list[Any] = [*given]
        self._not_kept: set[int] = set()
        self._vectors: set[int] = set()
        self._awaited = 0
        self._phase = 0
        self._silent = False
        self._paths: dict[int, tuple[str, ...]] = {}
        self._without_gradient: dict[int, int] = {}
        for one in self._alive:
            self._not_kept.add(_storage(one))
            if one.requires_grad:
                self._without_gradient[id(one)] = one.numel()
                one.register_hook(self._completed(id(one)))

    @property
    def parameters(self) -> int:
        """Parameters without a gradient yet."""
        return sum(self._without_gradient.values())

    def vectors(self, rows: int, columns: int, device: Any) -> Any:
        """Returns what stands for vectors of tables, whose gradient goes nowhere.

        Args:
            rows: Number of vectors.
            columns: Their width.
            device: Where they are.
        """
        start = self._torch.zeros(rows, columns, device=device, requires_grad=True)
        made = _vectors(self._torch, start, self._arrived)
        self._alive.append(made)
        self._vectors.add(_storage(made))
        self._not_kept.add(_storage(made))
        self._awaited += 1
        return made

    @contextmanager
    def forward(self) -> Iterator[None]:
        """Records a forward pass."""
        keeps = self._torch.autograd.graph.saved_tensors_hooks(self._keep, lambda kept: kept)
        with keeps, _dispatch_mode(self._record):
            yield

    @contextmanager
    def backward(self) -> Iterator[None]:
        """Records the backward pass of what ran before."""
        self._phase = 2 if self._awaited else 3
        with _dispatch_mode(self._record):
            yield

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Records nothing."""
        self._silent = True
        try:
            yield
        finally:
            self._silent = False

    def _record(self, func: Any, args: Any, given: dict[str, Any], result: Any) -> None:
        if self._silent:
            return
        inputs = list(tensors_in((args, given)))
        if self._phase == 0 and any(_storage(one) in self._vectors for one in inputs):
            self._phase = 1
        operator = func.overloadpacket.__name__
        outputs = list(tensors_in(result))
        read = {_storage(one) for one in inputs}
        view = all(_storage(one) in read for one in outputs) and not func._schema.is_mutable
        if operator in _NO_KERNEL or not outputs or view:
            return
        arguments = dict(zip((one.name for one in func._schema.arguments), args, strict=False))
        kind, sizes = _known(operator, arguments | given)
        record = Record(self._name(operator), kind, sizes)
        if kind is OperatorKind.ELEMENTWISE:
            if func.namespace != "aten":
                if func.namespace != "fbgemm" or any(one in operator for one in _ARITHMETIC):
                    self.unknown.add(f"{func.namespace}::{operator}")
            elif operator in _NOT_COUNTED:
                self.unknown.add(operator)
            if operator in _GATHERS:
                inputs = [*outputs, *inputs[1:]]
            record.tensors = [_extent(one) for one in (*inputs, *outputs)]
        self.phases[self._phase].append(record)

    def _name(self, operator: str) -> str:
        if self._phase > 1:
            # The gradient of an operator has the number of that operator.
            of = self._torch._C._current_autograd_node()
            path = self._paths.get(of._sequence_nr(), ()) if of is not None else ()
            return ".".join(("traced", *path, operator.removesuffix("_backward"), "backward"))
        # The longest of the names of the modules in work is that of the innermost.
        path = tuple(max(self.modules.parents, key=len).split(".")[2:])
        node = self._torch.autograd._get_sequence_nr()
        self._paths.setdefault(node - 1, path)
        return ".".join(("traced", *path, operator))

    def _keep(self, tensor: Any) -> Any:
        if _storage(tensor) not in self._not_kept:
            self._not_kept.add(_storage(tensor))
            values = tensor.untyped_storage().nbytes() // tensor.element_size()
            self.kept.append(((values,), _weight(tensor)))
        return tensor

    def _completed(self, weight: int) -> Any:
        def hook(_gradient: Any) -> None:
            records = self.phases[3] or self.phases[2]
            if records:
                records[-1].parameters += self._without_gradient.pop(weight, 0)

        return hook

    def _arrived(self) -> None:
        self._awaited -= 1
        if not self._awaited:
            self._phase = 3


def _dispatch_mode(record: Callable[..., None]) -> Any:
    """Returns a context that reports every operator below autograd after it has run."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Mode(TorchDispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
        ) -> Any:
            given = dict(kwargs or {})
            result = func(*args, **given)
            record(func, args, given, result)
            return result

    return Mode()


def _vectors(torch: Any, start: Any, arrived: Callable[[], None]) -> Any:
    """Returns a tensor whose gradient goes nowhere, but tells when it is complete."""

    class Vectors(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(_ctx: Any, given: Any) -> Any:
            return given.clone()

        @staticmethod
        def backward(_ctx: Any, *_gradients: Any) -> None:
            arrived()

    return Vectors.apply(start)


def _known(operator: str, given: Mapping[str, Any]) -> tuple[OperatorKind, dict[str, int]]:
    """The family of an operator, and the sizes of products and attention."""
    if operator in _PRODUCTS:
        left, right = (given[name].shape for name in _PRODUCTS[operator])
        sizes = {"m": left[-2], "n": right[-1], "k": left[-1]}
        if len(left) == 2:
            return OperatorKind.GEMM, sizes
        return OperatorKind.BATCHED_GEMM, {"batch": left[0]} | sizes
    if operator.startswith("_scaled_dot_product_"):
        query, key, value = given["query"], given["key"], given["value"]
        sequences, heads, positions, dim = query.shape
        return OperatorKind.SEQUENCE_ATTENTION, {
            "sequences": sequences,
            "positions": positions,
            "squared_positions": positions * key.shape[2],
            "heads": heads,
            "dim": dim,
            "value_dim": value.shape[3],
            "causal": int(bool(given.get("is_causal"))),
            "backward": int("backward" in operator),
        }
    return OperatorKind.ELEMENTWISE, {}


def _storage(tensor: Any) -> int:
    return int(tensor.untyped_storage()._cdata)


def _weight(tensor: Any) -> float:
    """Returns the weight of a value: integers and masks are not in the precision of arithmetic."""
    return 1.0 if tensor.is_floating_point() else tensor.element_size() / 4


def _extent(tensor: Any) -> Extent:
    """The dimensions of what is read of a tensor: an expanded one has less than its shape."""
    stored = tensor.untyped_storage().nbytes() // tensor.element_size()
    dims = tuple(tensor.shape) if tensor.numel() <= stored else (stored,)
    return dims, _weight(tensor)
