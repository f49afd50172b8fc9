"""Runner of a plan: settles it once on real tensors, then repeats it at full speed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dse.errors import DseError, WorkerError
from dse.trace.replay.plan import constraints_of, doubtful_memories, result_slots
from dse.trace.replay.run._arguments import (
    Action,
    call_action,
    collect_results,
    filled,
    has_slot,
    named_filled,
    on_meta,
    swapped,
)
from dse.trace.replay.run._tensors import tensor_on

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from dse.trace.replay.plan import CollectiveBinder, PlannedCall, ReplayPlan
    from dse.trace.replay.read import TensorRef
    from dse.trace.replay.run._batch import BatchScaler
    from dse.trace.replay.run._memory import MemoryWatch
    from dse.trace.replay.run._streams import Streams
    from dse.trace.replay.run._tensors import TensorFactory

#: How often a runner goes through its plan before it is timed.
_PASSES = 2
_Arguments = tuple[tuple[Any, ...], Any]


class PlanRunner:
    """Runs a plan.

    :meth:`settle` goes through it first: an operator that refuses its arguments is skipped with
    the reason, its results are made in advance from then on, and indices out of range are
    replaced. Then :meth:`run` repeats what is left at full speed.

    Args:
        torch: The torch module.
        plan: The plan.
        slots: Its tensors, those from outside filled.
        scaler: The batch.
        binder: Collectives.
        factory: Makes tensors.
        watch: Counts memory while the runner settles.
        streams: Streams of a GPU, if the recording had several.

    Attributes:
        redrawn: Arguments whose indices were replaced.
        reshaped: Results of another shape than recorded.
        collectives: Collectives of one repetition.
    """

    def __init__(
        self,
        torch: Any,
        plan: ReplayPlan,
        slots: list[Any],
        scaler: BatchScaler,
        binder: CollectiveBinder,
        factory: TensorFactory,
        watch: MemoryWatch,
        streams: Streams | None = None,
    ) -> None:
        self._torch = torch
        self._plan = plan
        self._slots = slots
        self._scaler = scaler
        self._binder = binder
        self._factory = factory
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

    # --- settling -------------------------------------------------------------------------------

    def settle(self) -> None:
        """Finds out what can be replayed, by doing it.

        Raises:
            ConfigError: A tensor does not fit.
            WorkerError: A collective failed.
        """
        functions: dict[int, Any] = {}
        refused: set[int] = set()
        # Calls see what later calls write in place only in the second pass.
        for _ in range(_PASSES):
            self.collectives = 0
            for number, call in enumerate(self._plan.calls):
                if number not in refused:
                    self._wait(call.waits)
                    settled = self._settle(call)
                    if settled is None:
                        refused.add(number)
                    else:
                        call.positional, functions[number] = settled
                self._release(call)
            self._drain()
        for number, call in enumerate(self._plan.calls):
            if number in refused:
                continue
            actions = list(self._compiled(number, call, functions[number]))
            if self._streams is not None:
                actions = [self._streams.wrapped(number, call, actions)]
            self._actions += actions
            self._names += [call.name or "a view"] * len(actions)

    def _settle(self, call: PlannedCall) -> _Arguments | None:
        """Makes a call for the first time; returns its arguments and function, or None."""
        if call.collective is not None:
            return self._settle_collective(call)
        return self._settle_view(call) if call.callee is None else self._settle_operator(call)

    def _settle_view(self, call: PlannedCall) -> _Arguments | None:
        base, ref = call.positional
        (slot,) = call.results
        ref = self._scaler.scaled(slot, ref)
        tensor = self._slots[base.number]
        if tensor is None or ref.end_bytes > tensor.untyped_storage().nbytes():
            self._replace(slot, ref)
            return None
        self._keep(slot, tensor_on(self._torch, tensor, ref))
        return (base, ref), None

    def _settle_collective(self, call: PlannedCall) -> _Arguments:
        assert call.collective is not None
        function = self._binder.bind(call.collective)
        self.collectives += 1
        try:
            work = function(*filled(call.positional, self._slots))
            if work is not None:
                work.wait()
        except DseError:
            raise
        except Exception as error:  # any error of the backend; ranks would wait for each other
            text = str(error).partition("\n")[0]
            raise WorkerError(f"{call.name} failed: {text}; try --collectives mock") from error
        return call.positional, function

    def _settle_operator(self, call: PlannedCall) -> _Arguments | None:
        assert call.callee is not None
        positional = self._in_range(call)
        scaled = self._scaler.arguments(call, filled(positional, self._slots))
        positional = tuple(
            old if has_slot(old) else new for old, new in zip(positional, scaled, strict=True)
        )
        function = call.callee.function
        if call.callee.kind == "torch":
            self._check_memory(call, positional)
        try:
            results = function(
                *filled(positional, self._slots), **named_filled(call.keywords, self._slots)
            )
        except Exception as error:  # any refusal of values that differ from the recorded ones
            text = " ".join(str(error).partition("\n")[0].split())[:160]
            self._plan.reasons[call.unit] = f"it refused its arguments: {text}"
            for slot, ref in self._results(call):
                self._replace(slot, self._scaler.scaled(slot, ref))
            return None
        self._take(call, results)
        return positional, function

    def _check_memory(self, call: PlannedCall, positional: tuple[Any, ...]) -> None:
        """Makes sure that the results of an operator fit, by calling it on the `meta` device."""
        assert call.callee is not None
        function = call.callee.function
        results = self._results(call)
        what = call.name
        if results:
            ref = results[0][1]
            what += f", tensor {ref.tensor} of shape {list(ref.shape)},"
        schema = getattr(function, "_schema", None)
        wanted = () if schema is None else schema.arguments
        has_device = any(known.name == "device" and known.kwarg_only for known in wanted)

        def dry_run(to_meta: Callable[[Any], Any]) -> Any:
            arguments = map(on_meta, filled(positional, self._slots, to_meta))
            named = named_filled(call.keywords, self._slots, to_meta)
            if has_device:
                named["device"] = "meta"
            return function(*arguments, **named)

        self._watch.ahead(dry_run, what, sum(ref.end_bytes for _, ref in results))

    def _results(self, call: PlannedCall) -> list[tuple[int, TensorRef]]:
        return [(slot, self._plan.slots[slot].ref) for slot in result_slots(call.results)]

    def _take(self, call: PlannedCall, results: Any) -> None:
        """Keeps results; those of another shape than recorded are made in advance."""
        found: dict[int, Any] = {}
        collect_results(call.results, results, found)
        for slot, ref in self._results(call):
            tensor = found.get(slot)
            fits = tensor is not None and (self._scaler.active or tuple(tensor.shape) == ref.shape)
            if fits:
                self._keep(slot, tensor)
            else:
                self.reshaped += 1
                self._replace(slot, self._scaler.scaled(slot, ref))

    def _keep(self, slot: int, tensor: Any) -> None:
        ref = self._plan.slots[slot].ref
        self._slots[slot] = tensor
        self._watch.add(tensor, f"tensor {ref.tensor} of shape {list(tensor.shape)}")

    def _replace(self, slot: int, ref: TensorRef) -> None:
        """Makes a tensor that stays, in place of a result that is missing."""
        self._kept.add(slot)
        if ref.hidden:
            self._slots[slot] = None  # calls that take it will refuse
            return
        self._slots[slot] = self._factory.alone(ref)
        self._watch.adopt(self._slots[slot])

    def _in_range(self, call: PlannedCall) -> tuple[Any, ...]:
        """Returns the arguments, with indices replaced that might be out of range."""
        positional = call.positional
        for slot, recorded in constraints_of(call, self._plan):
            constraint = self._scaler.constraint(recorded)
            tensor = self._slots[slot]
            if constraint is None or tensor is None:
                continue
            doubtful = self._plan.slots[slot].memory in self._doubtful and slot not in self._kept
            if not doubtful and constraint.holds_for(tensor):
                continue
            self.redrawn += 1
            fresh = len(self._slots)
            self._slots.append(self._factory.like(tensor, constraint, f"indices of {call.name}"))
            self._plan.slots.append(self._plan.slots[slot])
            self._kept.add(fresh)
            positional = tuple(swapped(value, slot, fresh) for value in positional)
        return positional

    def _release(self, call: PlannedCall) -> None:
        for slot in call.frees:
            if slot not in self._kept and self._slots[slot] is not None:
                self._watch.remove(self._slots[slot])
                self._slots[slot] = None

    # --- repetitions ----------------------------------------------------------------------------

    def run(self) -> None:
        """Runs everything once; the device may still be at work afterwards.

        Raises:
            WorkerError: An operator failed that had not when the runner settled.
        """
        slots = self._slots
        if self._streams is not None:
            self._streams.begin()
        done = -1
        try:
            for done, action in enumerate(self._actions):  # noqa: B007
                action(slots)
        except Exception as error:
            text = str(error).partition("\n")[0]
            raise WorkerError(f"{self._names[done]} failed in a repetition: {text}") from error
        self._drain()
        if self._streams is not None:
            self._streams.end()

    def close(self) -> None:
        """Frees the tensors; the runner cannot be used any more.

        Actions refer to the runner and it to them: without this the tensors would stay until the
        next garbage collection, next to those of the following rank.
        """
        self._drain()
        self._actions.clear()
        self._slots.clear()

    def _wait(self, calls: tuple[int, ...]) -> None:
        for begun in calls:
            work = self._pending.pop(begun, None)
            if work is not None:
                work.wait()

    def _drain(self) -> None:
        self._wait(tuple(self._pending))

    def _compiled(self, number: int, call: PlannedCall, function: Any) -> Iterator[Action]:
        pending, positional, torch = self._pending, call.positional, self._torch
        if call.waits:
            yield lambda _: self._wait(call.waits)
        frees = tuple(slot for slot in call.frees if slot not in self._kept)
        if call.callee is not None:
            kept = {slot for slot in result_slots(call.results) if slot not in self._kept}
            yield call_action(function, positional, call.keywords, call.results, kept, frees)
        elif call.collective is not None:

            def begin(slots: list[Any]) -> None:
                work = function(*filled(positional, slots))
                if work is not None:
                    pending[number] = work
                for slot in frees:
                    slots[slot] = None

            yield begin
        else:
            (base, ref), (target,) = positional, call.results

            def view(slots: list[Any]) -> None:
                slots[target] = tensor_on(torch, slots[base.number], ref)
                for slot in frees:
                    slots[slot] = None

            yield view
