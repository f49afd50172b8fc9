"""A plan with its tensors: settled once, then run again and again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dse.errors import DseError, WorkerError
from dse.trace.replay._arguments import (
    Action,
    call_action,
    collect_results,
    filled,
    has_slot,
    named_filled,
    on_meta,
    swapped,
)
from dse.trace.replay._demands import Demand, DemandKind, demands_of, doubtful_memories
from dse.trace.replay._outside import tensor_on
from dse.trace.replay._plan import given_slots

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from dse.trace.replay._batch import Scaler
    from dse.trace.replay._exchange import Exchange
    from dse.trace.replay._memory import Budget, Watch
    from dse.trace.replay._outside import Filler
    from dse.trace.replay._plan import Plan, Step
    from dse.trace.replay._recorded import TensorRef
    from dse.trace.replay._streams import Streams


#: How often a program goes through its plan before it is timed.
_PASSES = 2


class Program:
    """Runs a plan.

    :meth:`settle` goes through it with patience first: an operator that refuses its arguments is
    skipped with the reason, what it would have given is made beforehand from then on, and indices
    out of range are drawn anew. Only then :meth:`run` repeats what is left at full speed.

    Args:
        torch: The torch module.
        plan: What to run.
        slots: Its tensors, those from outside filled.
        scaler: The batch.
        exchange: Collectives.
        filler: Makes tensors.
        budget: Limit on memory.
        watch: Counts memory while the program settles.
        streams: Streams of a GPU, if the trace tells of several.
    """

    def __init__(
        self,
        torch: Any,
        plan: Plan,
        slots: list[Any],
        scaler: Scaler,
        exchange: Exchange,
        filler: Filler,
        budget: Budget,
        watch: Watch,
        streams: Streams | None = None,
    ) -> None:
        self._torch = torch
        self._plan = plan
        self._slots = slots
        self._scaler = scaler
        self._exchange = exchange
        self._filler = filler
        self._budget = budget
        self._watch = watch
        self._streams = streams
        self._pending: dict[int, Any] = {}
        self._kept = set(plan.outside_slots())
        self._doubtful = doubtful_memories(plan)
        self._actions: list[Action] = []
        self._names: list[str] = []
        self.redrawn = 0
        self.reshaped = 0
        self.collectives = 0
        for tensor in slots:
            if tensor is not None:
                watch.adopt(tensor)

    def settle(self) -> None:
        """Finds out what can be replayed, by doing it.

        Raises:
            ConfigError: A tensor does not fit.
            WorkerError: A collective failed.
        """
        functions: dict[int, Any] = {}
        refused: set[int] = set()
        # What is written in place meets the first operators only when it comes to them again.
        for _ in range(_PASSES):
            self.collectives = 0
            for number, step in enumerate(self._plan.steps):
                if number not in refused:
                    settled = self._settle(number, step)
                    if settled is None:
                        refused.add(number)
                    else:
                        step.positional, step.keywords, functions[number] = settled
                self._release(step)
            self._drain()
        for number, step in enumerate(self._plan.steps):
            if number in refused:
                continue
            actions = list(self._compiled(number, step, functions[number]))
            if self._streams is not None:
                actions = [self._streams.wrapped(number, step, actions)]
            self._actions += actions
            self._names += [step.name or "a view"] * len(actions)

    def run(self) -> None:
        """Runs everything once; the device may still be at work afterwards.

        Raises:
            WorkerError: An operator failed that had not when the program settled.
        """
        slots = self._slots
        if self._streams is not None:
            self._streams.begin()
        done = -1
        try:
            for done, action in enumerate(self._actions):  # noqa: B007
                action(slots)
        except Exception as error:
            words = str(error).partition("\n")[0]
            raise WorkerError(f"{self._names[done]} failed in a repetition: {words}") from error
        self._drain()
        if self._streams is not None:
            self._streams.end()

    def _drain(self) -> None:
        for work in self._pending.values():
            work.wait()
        self._pending.clear()

    def _release(self, step: Step) -> None:
        for slot in step.frees:
            if slot not in self._kept and self._slots[slot] is not None:
                self._watch.remove(self._slots[slot])
                self._slots[slot] = None

    def _settle(self, number: int, step: Step) -> tuple[Any, Any, Any] | None:
        """Does a step for the first time; returns arguments and function, or None."""
        for begun in step.waits:
            work = self._pending.pop(begun, None)
            if work is not None:
                work.wait()
        if step.collective is not None:
            return self._settle_collective(number, step)
        if step.call is None:
            return self._settle_view(step)
        return self._settle_call(step)

    def _settle_view(self, step: Step) -> tuple[Any, Any, Any] | None:
        base, ref = step.positional
        (slot,) = step.given
        ref = self._scaler.scaled(slot, ref)
        tensor = self._slots[base.number]
        if tensor is None or ref.end_bytes > tensor.untyped_storage().nbytes():
            self._replace(slot, ref, None)
            return None
        self._keep(slot, tensor_on(self._torch, tensor, ref))
        return (base, ref), (), None

    def _settle_collective(self, number: int, step: Step) -> tuple[Any, Any, Any]:
        call = step.collective
        assert call is not None
        function = self._exchange.bind(call)
        self.collectives += 1
        try:
            work = function(*filled(step.positional, self._slots))
            if work is not None:
                work.wait()
        except DseError:
            raise
        except Exception as error:  # whatever the backend says; ranks would wait for each other
            words = str(error).partition("\n")[0]
            raise WorkerError(f"{step.name} failed: {words}; try --collectives mock") from error
        return step.positional, (), function

    def _settle_call(self, step: Step) -> tuple[Any, Any, Any] | None:
        assert step.call is not None
        positional = self._in_range(step)
        tensors = filled(positional, self._slots)
        scaled = self._scaler.arguments(step, tensors)
        positional = tuple(
            old if has_slot(old) else new for old, new in zip(positional, scaled, strict=True)
        )
        function = step.call.function
        given = self._outputs(step)
        what = f"{step.name}"
        if given:
            what += f", tensor {given[0][1].tensor} of shape {list(given[0][1].shape)},"
        recorded_bytes = sum(ref.end_bytes for _, ref in given)
        schema = getattr(function, "_schema", None)
        wanted = () if schema is None else schema.arguments

        def call(turned: Callable[[Any], Any]) -> Any:
            arguments = map(on_meta, filled(positional, self._slots, turned))
            named = named_filled(step.keywords, self._slots, turned)
            if any(known.name == "device" and known.kwarg_only for known in wanted):
                named["device"] = "meta"
            return function(*arguments, **named)

        if step.call.kind == "torch":
            self._watch.ahead(call, what, recorded_bytes)
        try:
            results = function(
                *filled(positional, self._slots), **named_filled(step.keywords, self._slots)
            )
        except Exception as error:  # whatever an operator says to values of another run
            words = " ".join(str(error).partition("\n")[0].split())[:160]
            self._plan.reasons[step.unit] = f"it refused its arguments: {words}"
            for slot, ref in given:
                self._replace(slot, self._scaler.scaled(slot, ref), None)
            return None
        self._take(step, results)
        return positional, step.keywords, function

    def _outputs(self, step: Step) -> list[tuple[int, TensorRef]]:
        return [(slot, self._plan.slots[slot].ref) for slot in given_slots(step.given)]

    def _take(self, step: Step, results: Any) -> None:
        """Keeps results; what came out in another shape than recorded is made beforehand."""
        found: dict[int, Any] = {}
        collect_results(step.given, results, found)
        for slot, ref in self._outputs(step):
            tensor = found.get(slot)
            fits = tensor is not None and (self._scaler.active or tuple(tensor.shape) == ref.shape)
            if fits:
                self._keep(slot, tensor)
            else:
                self.reshaped += 1
                self._replace(slot, self._scaler.scaled(slot, ref), None)

    def _keep(self, slot: int, tensor: Any) -> None:
        ref = self._plan.slots[slot].ref
        self._slots[slot] = tensor
        self._watch.add(tensor, f"tensor {ref.tensor} of shape {list(tensor.shape)}")

    def _replace(self, slot: int, ref: TensorRef, demand: Demand | None) -> None:
        self._kept.add(slot)
        if ref.hidden:
            self._slots[slot] = None  # what takes it will refuse
            return
        self._slots[slot] = self._filler.alone(ref, demand, self._budget)
        self._watch.adopt(self._slots[slot])

    def _in_range(self, step: Step) -> tuple[Any, ...]:
        """Returns the arguments, indices that would reach outside replaced by others."""
        positional = step.positional
        for slot, recorded in demands_of(step, self._plan):
            demand = self._scaler.demand(0, recorded)
            tensor = self._slots[slot]
            if demand is None or tensor is None:
                continue
            doubtful = self._plan.slots[slot].memory in self._doubtful and slot not in self._kept
            if not doubtful and _meets(tensor, demand):
                continue
            self.redrawn += 1
            fresh = len(self._slots)
            self._slots.append(self._torch.empty_like(tensor).contiguous())
            self._plan.slots.append(self._plan.slots[slot])
            self._kept.add(fresh)
            size_bytes = int(tensor.untyped_storage().nbytes())
            self._budget.take(size_bytes, f"indices of {step.name}")
            self._filler.fill(self._slots[fresh].view(-1), demand, tensor.numel())
            positional = tuple(swapped(value, slot, fresh) for value in positional)
        return positional

    def _compiled(
        self,
        number: int,
        step: Step,
        function: Any,
    ) -> Iterator[Action]:
        pending, positional = self._pending, step.positional
        if step.waits:
            waits = step.waits

            def wait(slots: list[Any]) -> None:
                for begun in waits:
                    work = pending.pop(begun, None)
                    if work is not None:
                        work.wait()

            yield wait
        frees = tuple(slot for slot in step.frees if slot not in self._kept)
        if step.collective is not None:

            def begin(slots: list[Any]) -> None:
                work = function(*filled(positional, slots))
                if work is not None:
                    pending[number] = work
                for slot in frees:
                    slots[slot] = None

            yield begin
        elif step.call is None:
            (base, ref), (target,) = positional, step.given
            torch = self._torch

            def view(slots: list[Any]) -> None:
                slots[target] = tensor_on(torch, slots[base.number], ref)
                for slot in frees:
                    slots[slot] = None

            yield view
        else:
            kept = [slot for slot in given_slots(step.given) if slot not in self._kept]
            yield call_action(function, positional, step.keywords, step.given, set(kept), frees)


def _meets(tensor: Any, demand: Demand) -> bool:
    """Whether values are such that an operator does not reach outside of its memory."""
    if not tensor.numel() or tensor.is_floating_point() or tensor.is_sparse:
        return True
    if demand.kind is DemandKind.RANGE:
        lowest, highest = (int(value) for value in tensor.aminmax())
        return lowest >= 0 and highest < demand.limit
    if demand.kind is DemandKind.ASCENDING:
        ends = int(tensor[-1]) == demand.limit if demand.whole else int(tensor[-1]) <= demand.limit
        return ends and int(tensor[0]) == 0 and bool((tensor.diff() >= 0).all())
    if demand.kind is DemandKind.VALUES:
        return bool(tensor.reshape(-1).tolist()[: len(demand.values)] == list(demand.values))
    return True
