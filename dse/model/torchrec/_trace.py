"""Dense part of a live module by running it: forward and backward, on a few samples.

The module runs with stand-ins in place of its collections, which yield vectors of the right shapes
without any table, and with weights of its own, so it is left as it was. Every operator below
autograd is recorded with the shapes of its tensors. A second run on the same samples twice tells
which sizes follow the number of samples.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import fields, is_dataclass
import inspect
from typing import TYPE_CHECKING, Any

from dse._torch import load_torch
from dse.model.torchrec._growth import traced_dense
from dse.model.torchrec._nested import resized, tensors_in
from dse.model.torchrec._recorder import Recorder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from dse.model.dlrm import TracedDense

#: Samples of the shorter run at most. They run for real, so that a module may look at its data.
_SAMPLES = 128


class NotTracedError(Exception):
    """A module cannot be run here; says why."""


def trace_dense(
    module: Any,
    collections: Sequence[Any],
    batch: Any,
    samples: int,
    forward: Callable[[Any, Any], Any] | None,
) -> tuple[TracedDense, tuple[str, ...]]:
    """Returns the operators of a dense part, and the names of those of unknown arithmetic.

    Args:
        module: The module.
        collections: Its outermost collections of tables.
        batch: A batch that it takes.
        samples: Samples of the batch.
        forward: Calls the module with a batch; by default a module of one argument gets the batch,
            one of several its parts.

    Raises:
        NotTracedError: The module does not run.
    """
    if any(hasattr(one, "reducer") for one in module.modules()):
        # A run would set off its all-reduces.
        raise NotTracedError("it is wrapped for several ranks; give the module inside")
    torch = load_torch()
    in_tables = {id(one) for collection in collections for one in _own(collection)}
    device = next(
        (one.device for one in module.parameters() if id(one) not in in_tables),
        torch.device("cpu"),
    )
    if device.type == "meta":
        device = torch.device("cpu")
    some = min(samples, _SAMPLES)
    try:
        runs = [
            _run(
                module,
                collections,
                in_tables,
                resized(batch, samples, some, times, device),
                device,
                forward or _call,
            )
            for times in (1, 2)
        ]
        return traced_dense(runs[0], runs[1], some)
    # Whatever a module of somebody else raises.
    except Exception as error:
        lines = str(error).strip().splitlines()
        raise NotTracedError(f"{type(error).__name__}: {lines[0] if lines else ''}") from error


def _own(module: Any) -> Iterator[Any]:
    yield from module.parameters()
    yield from module.buffers()


def _run(
    module: Any,
    collections: Sequence[Any],
    in_tables: set[int],
    batch: Any,
    device: Any,
    forward: Callable[[Any, Any], Any],
) -> Recorder:
    """Runs the module forward and backward once."""
    torch = load_torch()
    weights = {
        f"traced.{name}": _copied(one, device)
        for name, one in (*module.named_parameters(), *module.named_buffers())
        if id(one) not in in_tables
    }
    recorder = Recorder((*weights.values(), *tensors_in(batch)))
    devices = [device] if device.type == "cuda" else []
    with (
        torch.random.fork_rng(devices=devices),
        torch.enable_grad(),
        recorder.modules,
        _stand_ins(collections, recorder, device),
    ):
        step = _step(torch, module, forward, recorder)
        torch.func.functional_call(step, weights, (batch,))
    return recorder


def _step(torch: Any, module: Any, forward: Callable[[Any, Any], Any], recorder: Recorder) -> Any:
    """Returns forward and backward of a module as a module, whose weights can be replaced."""

    class Step(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.traced = module

        def forward(self, batch: Any) -> None:
            with recorder.forward():
                result = forward(self.traced, batch)
            outputs = [one for one in tensors_in(result) if one.requires_grad]
            recorder.outputs = sum(one[:1].numel() for one in outputs if one.dim())
            if not outputs and recorder.parameters:
                raise ValueError("what it returns has no gradient")
            if outputs:
                gradients = [torch.ones_like(one) for one in outputs]
                with recorder.backward():
                    torch.autograd.backward(outputs, gradients)

    return Step()


def _copied(one: Any, device: Any) -> Any:
    """A parameter whose gradient is its own, or a buffer that a run may change."""
    if one.is_meta:
        copy = load_torch().zeros_like(one, device=device)
    else:
        copy = one.detach() if one.requires_grad else one.detach().clone()
    return copy.requires_grad_(one.requires_grad)


@contextmanager
def _stand_ins(collections: Sequence[Any], recorder: Recorder, device: Any) -> Iterator[None]:
    """Puts stand-ins in place of the lookups of collections."""
    before = [vars(collection).get("forward") for collection in collections]
    try:
        for collection in collections:
            collection.forward = _stand_in(collection, recorder, device)
        yield
    finally:
        for collection, own in zip(collections, before, strict=True):
            if own is None:
                del collection.forward
            else:
                collection.forward = own


def _stand_in(collection: Any, recorder: Recorder, device: Any) -> Callable[..., Any]:
    """Returns what yields the vectors of a collection, whatever its tables hold."""
    from torchrec.modules.embedding_modules import get_embedding_names_by_table
    from torchrec.sparse.jagged_tensor import JaggedTensor, KeyedTensor

    pooled = hasattr(collection, "embedding_bag_configs")
    configs = getattr(collection, f"embedding{'_bag' * pooled}_configs")
    configs = list(configs() if callable(configs) else configs)
    names = get_embedding_names_by_table(configs)
    weights = not pooled and bool(getattr(collection, "_need_indices", False))

    def bags(features: Any) -> Any:
        widths = [one.embedding_dim for one, own in zip(configs, names, strict=True) for _ in own]
        keys = [name for own in names for name in own]
        return KeyedTensor(keys, widths, recorder.vectors(features.stride(), sum(widths), device))

    def rows(features: Any) -> Any:
        jagged = features.to_dict()
        return {
            name: JaggedTensor(
                recorder.vectors(jagged[feature].values().numel(), one.embedding_dim, device),
                lengths=jagged[feature].lengths(),
                weights=jagged[feature].values() if weights else None,
            )
            for one, own in zip(configs, names, strict=True)
            for name, feature in zip(own, one.feature_names, strict=True)
        }

    def forward(features: Any, *_: Any, **__: Any) -> Any:
        with recorder.paused():
            return bags(features) if pooled else rows(features)

    return forward


def _call(module: Any, batch: Any) -> Any:
    """Calls a module with a batch, or with its parts by name or in their order."""
    taken = [
        one
        for one in inspect.signature(module.forward).parameters.values()
        if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)
    ]
    if len(taken) == 1:
        return module(batch)
    if is_dataclass(batch):
        batch = {one.name: getattr(batch, one.name) for one in fields(batch)}
    if isinstance(batch, dict):
        return module(**{one.name: batch[one.name] for one in taken if one.name in batch})
    return module(*batch[: len(taken)]) if isinstance(batch, list | tuple) else module(batch)
