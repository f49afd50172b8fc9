"""Other shapes: batch, width, sequence."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from dse.errors import ConfigError
from dse.trace import COMPUTING, Phase, Role
from dse.trace.whatif._arguments import arguments_of, resized, with_shapes
from dse.trace.whatif._flattened import flattened_note, usual_sizes
from dse.trace.whatif._lookups import lookups_of, rewritten, rewritten_lookup
from dse.trace.whatif._resize_collectives import resize_collectives, scaled_info
from dse.trace.whatif._retime_kernels import (
    describe_inputs,
    kernel_times,
    retime_kernels,
    share_of_time,
)
from dse.trace.whatif._select import Selector
from dse.trace.whatif._steps import Factor, Optimization

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dse.trace import CollectiveInfo, OperatorInputs
    from dse.trace.whatif._arguments import ShapeChange
    from dse.trace.whatif._job import Job
    from dse.trace.whatif._lookups import Lookup, LookupTasks

_GRADIENTS = "*AccumulateGrad*"


def _as_dimensions(value: object) -> object:
    """Reads `512:1024;64:128`."""
    if not isinstance(value, str):
        return value
    pairs = [part.split(":") for part in value.split(";") if part.strip()]
    if not pairs or not all(
        len(pair) == 2 and all(size.strip().isdecimal() for size in pair) for pair in pairs
    ):
        raise PydanticCustomError(
            "dimensions",
            "expected sizes as `512:1024` or `512:1024;64:128`, found `{found}`",
            {"found": value},
        )
    if len({old.strip() for old, _ in pairs}) < len(pairs):
        raise PydanticCustomError(
            "dimensions", "a size is given twice in `{found}`", {"found": value}
        )
    return {old.strip(): new.strip() for old, new in pairs}


def _as_sizes(value: object) -> object:
    if isinstance(value, str):
        return [part.strip() for part in value.split(";")]
    return value if isinstance(value, list) else [value]


#: No dimension of a tensor in memory is larger.
_LARGEST = 10**12
Size = Annotated[int, Field(ge=1, le=_LARGEST)]


class Resize(Optimization):
    """Other sizes of a dimension, such as batch or width: `resize=512:1024`, `resize=8:16;64:128`.

    Every dimension of a recorded shape that equals an old size gets the new one. Sizes that mean
    two things at once change twice; the report says how many operators changed.

    Attributes:
        dimensions: Old size → new size.
        times: Factors of flattened products: with `64:128` and `times=512` a dimension of 32768
            becomes 65536.
        samples: Whether the sizes are batches, so that the step works on more or fewer samples.
            Exchanges whose shapes do not tell, such as all-to-all, then go with the batch.
        communication: Bytes of collectives, times this, whatever shapes and parameters tell.
    """

    main_option: ClassVar[str] = "dimensions"

    optimization: Literal["resize"] = "resize"
    dimensions: Annotated[dict[Size, Size], Field(min_length=1), BeforeValidator(_as_dimensions)]
    times: Annotated[list[Size], BeforeValidator(_as_sizes)] = []  # noqa: RUF012
    samples: bool = False
    communication: Factor | None = None

    @model_validator(mode="after")
    def _one_batch(self) -> Resize:
        if self.samples and len({new / old for old, new in self.dimensions.items()}) > 1:
            raise PydanticCustomError(
                "samples",
                "`samples` says that all sizes are batches, but they change by different factors; "
                "write one step for the batch and one for the rest",
            )
        return self

    @property
    def title(self) -> str:
        """Sizes and options."""
        sizes = ";".join(f"{old}:{new}" for old, new in self.dimensions.items())
        given = [
            self.shown(name)
            for name in ("times", "samples", "communication")
            if name in self.model_fields_set
        ]
        return " ".join([f"resize={sizes}", *given])

    def apply(self, job: Job) -> None:
        """Re-times what works on the sizes."""
        same = all(old == new for old, new in self.dimensions.items())
        if same and self.communication in (None, 1.0):
            raise ConfigError("all sizes stay as they are; give a new size, as in 512:1024")
        platform = job.machine.known_platform("resize")
        change = resized(self.dimensions, tuple(self.times))
        computing = job.select(Selector(role=COMPUTING))
        shaped = [task for task in computing if _has_shapes(job.inputs_of(task))]
        if not shaped:
            raise ConfigError(
                "the traces have no shapes of operators; record them with "
                "torch.profiler.profile(record_shapes=True)"
            )
        probe = resized(dict.fromkeys(self.dimensions, -1), tuple(self.times))
        after = self._inputs(job, computing, change, probe)
        collectives = self._collectives(job, change)
        if not after:
            found = ", ".join(map(str, self.dimensions))
            usual = ", ".join(map(str, usual_sizes(job, computing)))
            raise ConfigError(
                f"no operator has a dimension of {found}; most of the time works on {usual} "
                "(`dse trace info --shapes` lists all), and `times` finds flattened products"
            )
        tasks = tuple(after)
        flattened = flattened_note(job, computing, self.dimensions, probe)
        before_s = kernel_times(job, tasks, platform)
        for task, inputs in after.items():
            describe_inputs(job, task, inputs)
        retime_kernels(job, tasks, before_s, kernel_times(job, tasks, platform))
        _describe_others(job, tasks, change)
        if collectives:
            resize_collectives(job, collectives, job.machine.cluster("resize"))
        if self.samples:
            old, new = next(iter(self.dimensions.items()))
            job.work_factor *= new / old
        rest = [task for task in computing if task not in after]
        without = [task for task in rest if not _has_shapes(job.inputs_of(task))]
        job.notes.append(
            f"{len(tasks)} of {len(computing)} kernels work on the sizes"
            + (
                f"; {len(without)} without shapes "
                f"({100 * share_of_time(job, without, computing):.0f} % of the time) stay"
                if without
                else ""
            )
        )
        job.notes += flattened

    def _inputs(
        self, job: Job, tasks: Sequence[int], change: ShapeChange, probe: ShapeChange
    ) -> dict[int, OperatorInputs]:
        """Returns the tasks that work on the sizes, with their inputs from now on.

        The probe gives these sizes an impossible value, so it finds them even where they stay.
        """
        lookups = [(one, _resized_lookup(one.lookup, change)) for one in lookups_of(job)]
        forward = {task: pair for pair in lookups for task in pair[0].forward}
        by_rank: dict[int, list[tuple[LookupTasks, Lookup]]] = {}
        for pair in lookups:
            by_rank.setdefault(pair[0].rank, []).append(pair)
        result = {}
        for task in tasks:
            inputs = job.inputs_of(task)
            if inputs is None:
                continue
            if task in forward:
                group, new = forward[task]
                changed = rewritten_lookup(inputs, group.lookup, new)
            else:
                changed = with_shapes(inputs, change)
                for group, new in by_rank.get(job.rank_of(task), ()):
                    if changed is not inputs:
                        break
                    changed = rewritten(inputs, group.lookup, new)
            if changed is not inputs or with_shapes(inputs, probe) is not inputs:
                result[task] = changed
        return result

    def _collectives(self, job: Job, change: ShapeChange) -> dict[int, CollectiveInfo]:
        tasks = job.select(Selector(role=(Role.COLLECTIVE,)))
        parameters = _parameter_factors(job, change) if tasks else {}
        old, new = next(iter(self.dimensions.items()))
        result = {}
        for task in tasks:
            info = job.collective_of(task)
            if info is None or info.message_bytes < 0:
                continue
            rank = job.rank_of(task)
            if self.communication is not None:
                factor = self.communication
            elif _is_of_gradients(job, task):
                factor = parameters.get(rank, 1.0)
            else:
                factor = _shape_factor(job.inputs_of(task), change)
                if factor == 1.0 and self.samples and info.operation == "all_to_all":
                    factor = new / old
            if factor != 1.0:
                result[task] = scaled_info(info, factor)
        return _for_whole_meetings(job, result)


def _for_whole_meetings(job: Job, changed: dict[int, CollectiveInfo]) -> dict[int, CollectiveInfo]:
    """Adds the members that do not change, so that a meeting is judged as a whole."""
    result = {}
    for members in job.meetings(job.select(Selector(role=(Role.COLLECTIVE,)))):
        if not any(task in changed for task in members):
            continue
        for task in members:
            info = changed.get(task) or job.collective_of(task)
            if info is not None:
                result[task] = info
    return result


def _describe_others(job: Job, tasks: Sequence[int], change: ShapeChange) -> None:
    """Changes the shapes of what takes no time of a device, such as gathering of gradients."""
    known: dict[OperatorInputs, OperatorInputs] = {}
    done = frozenset(tasks)
    for task in job.select(Selector()):
        inputs = job.inputs_of(task)
        if task in done or inputs is None:
            continue
        if inputs not in known:
            known[inputs] = with_shapes(inputs, change)
        if known[inputs] is not inputs:
            job.describe(task, inputs=known[inputs])


def _has_shapes(inputs: OperatorInputs | None) -> bool:
    return inputs is not None and any(one.shapes for one in arguments_of(inputs))


def _is_of_gradients(job: Job, task: int) -> bool:
    if any("AccumulateGrad" in name for name in job.stack_of(task)):
        return True
    return job.phase_of(task) == Phase.BACKWARD and job.operation_of(task) in (
        "all_reduce",
        "reduce_scatter",
    )


def _parameter_factors(job: Job, change: ShapeChange) -> dict[int, float]:
    """Returns for each rank new over old parameters, of those whose gradients were accumulated."""
    sums: dict[int, list[int]] = {}
    seen = set()
    for task in job.select(Selector(operator=(_GRADIENTS,))):
        inputs, key = job.inputs_of(task), (job.rank_of(task), job.operator_of(task))
        if inputs is None or key in seen:
            continue
        seen.add(key)
        old, new = (
            max((one.elements for one in arguments_of(some)), default=0)
            for some in (inputs, with_shapes(inputs, change))
        )
        total = sums.setdefault(key[0], [0, 0])
        total[0] += old
        total[1] += new
    return {rank: new / old for rank, (old, new) in sums.items() if old}


def _shape_factor(inputs: OperatorInputs | None, change: ShapeChange) -> float:
    if inputs is None:
        return 1.0
    old, new = (
        sum(one.elements for one in arguments_of(some))
        for some in (inputs, with_shapes(inputs, change))
    )
    return new / old if old else 1.0


def _resized_lookup(lookup: Lookup, change: ShapeChange) -> Lookup:
    """Returns a lookup for other samples, and tables of another width."""
    batch, total_dim = change((lookup.batch, lookup.total_dim))
    return replace(
        lookup,
        batch=batch,
        total_dim=total_dim,
        indices=round(lookup.indices * batch / lookup.batch),
        weights=round(lookup.weights * total_dim / lookup.total_dim),
    )
