"""Other shapes: batch, width, sequence."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from dse.errors import ConfigError
from dse.trace import COMPUTING
from dse.trace.whatif.core import Factor, Optimization, Selector, resized
from dse.trace.whatif.retime import (
    describe_inputs,
    flattened_notes,
    has_shapes,
    kernel_times,
    resize_collectives,
    resize_descriptions,
    resized_collectives,
    resized_inputs,
    retime_kernels,
    share_of_time,
    usual_sizes,
)

if TYPE_CHECKING:
    from dse.trace.whatif.core import StepEditor


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
            All-to-alls without shapes then follow the batch.
        communication: Bytes of collectives, times this, whatever shapes and parameters say.
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
                "write one change for the batch and one for the rest",
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

    def apply(self, editor: StepEditor) -> None:
        """Re-times what works on the sizes."""
        same = all(old == new for old, new in self.dimensions.items())
        if same and self.communication in (None, 1.0):
            raise ConfigError("all sizes stay as they are; give a new size, as in 512:1024")
        platform = editor.machine.known_platform("resize")
        change = resized(self.dimensions, tuple(self.times))
        probe = resized(dict.fromkeys(self.dimensions, -1), tuple(self.times))
        computing = editor.select(Selector(role=COMPUTING))
        if not any(has_shapes(editor.inputs_of(task)) for task in computing):
            raise ConfigError(
                "the traces have no shapes of operators; record them with "
                "torch.profiler.profile(record_shapes=True)"
            )
        old, new = next(iter(self.dimensions.items()))
        samples = new / old if self.samples else 1.0
        after = resized_inputs(editor, computing, change, probe)
        collectives = resized_collectives(editor, change, samples, self.communication)
        if not after:
            found = ", ".join(map(str, self.dimensions))
            usual = ", ".join(map(str, usual_sizes(editor, computing)))
            raise ConfigError(
                f"no operator has a dimension of {found}; most of the time works on {usual} "
                "(`dse trace info --shapes` lists all), and `times` finds flattened products"
            )
        tasks = tuple(after)
        flattened = flattened_notes(editor, computing, self.dimensions, probe)
        before_s = kernel_times(editor, tasks, platform)
        for task, inputs in after.items():
            describe_inputs(editor, task, inputs)
        retime_kernels(editor, tasks, before_s, kernel_times(editor, tasks, platform))
        resize_descriptions(editor, tasks, change)
        if collectives:
            resize_collectives(editor, collectives, editor.machine.cluster("resize"))
        editor.work_factor *= samples
        without = [task for task in computing if task not in after]
        without = [task for task in without if not has_shapes(editor.inputs_of(task))]
        note = f"{len(tasks)} of {len(computing)} kernels work on the sizes"
        if without:
            share = share_of_time(editor, without, computing)
            note += f"; {len(without)} without shapes ({100 * share:.0f} % of the time) stay"
        editor.notes += [note, *flattened]
