"""Embedding tables on other ranks."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from dse.config import Fraction, StrictModel
from dse.errors import ConfigError
from dse.trace import COMPUTING, Phase, Role
from dse.trace.whatif._lookups import lookups_of, rewritten, rewritten_lookup
from dse.trace.whatif._resize_collectives import resize_collectives
from dse.trace.whatif._retime_kernels import describe_inputs, kernel_times, retime_kernels
from dse.trace.whatif._select import Selector
from dse.trace.whatif._steps import Optimization
from dse.trace.whatif._tables import Tables

if TYPE_CHECKING:
    from dse.trace import CollectiveInfo, OperatorInputs
    from dse.trace.whatif._job import Job
    from dse.trace.whatif._lookups import Lookup, LookupTasks

Rank = Annotated[int, Field(ge=0)]


class MoveBlock(StrictModel):
    """Tables that go from one rank to another: a number of them, or a share of the rank's.

    Attributes:
        source: Rank that gives them, `from` in YAML.
        target: Rank that gets them, `to` in YAML.
        tables: How many.
        share: Share of the tables of the source; fractions of a table are cut by columns.
    """

    model_config = ConfigDict(populate_by_name=True)

    source: Rank = Field(alias="from")
    target: Rank = Field(alias="to")
    tables: Annotated[int, Field(ge=1)] | None = None
    share: Fraction | None = None

    @model_validator(mode="after")
    def _one_amount(self) -> MoveBlock:
        if (self.tables is None) == (self.share is None):
            raise PydanticCustomError("amount", "expected one of `tables` and `share`")
        return self

    def __str__(self) -> str:
        amount = str(self.tables) if self.share is None else f"{100 * self.share:g} %"
        return f"{self.source}:{self.target}:{amount}"


def _as_moves(value: object) -> object:
    """Reads `0:3:2;1:2:50%`: from, to, and tables or a share."""
    if not isinstance(value, str):
        return value
    moves: list[dict[str, Any]] = []
    for text in filter(None, (part.strip() for part in value.split(";"))):
        parts = [part.strip() for part in text.split(":")]
        if len(parts) != 3:
            raise PydanticCustomError(
                "moves",
                "expected moves as `FROM:TO:TABLES` or `FROM:TO:50%`, found `{found}`",
                {"found": text},
            )
        amount = "share" if "%" in parts[2] or "." in parts[2] else "tables"
        moves.append({"from": parts[0], "to": parts[1], amount: parts[2]})
    return moves


class Reshard(Optimization):
    """Embedding tables on other ranks: `reshard=0:3:2` moves two of rank 0's, `reshard=balance`.

    The tables of one fused lookup are taken to be alike, since traces do not tell them apart.

    Attributes:
        moves: What moves where, one after the other.
        balance: Moves tables one by one from the rank with the longest lookups to the one with the
            shortest, as long as the longest becomes shorter.
    """

    main_option: ClassVar[str] = "moves"

    optimization: Literal["reshard"] = "reshard"
    moves: Annotated[list[MoveBlock], BeforeValidator(_as_moves)] = []  # noqa: RUF012
    balance: bool = False

    @model_validator(mode="before")
    @classmethod
    def _balance_by_name(cls, value: object) -> object:
        if isinstance(value, dict) and value.get("moves") == "balance":
            rest = {key: item for key, item in value.items() if key != "moves"}
            return {**rest, "balance": True}
        return value

    @model_validator(mode="after")
    def _says_something(self) -> Reshard:
        if bool(self.moves) == self.balance:
            raise PydanticCustomError("reshard", "expected either `moves` or `balance`")
        return self

    @property
    def title(self) -> str:
        """What moves."""
        return "reshard=" + ("balance" if self.balance else ";".join(map(str, self.moves)))

    def apply(self, job: Job) -> None:
        """Moves tables and re-times lookups and exchanges."""
        platform = job.machine.known_platform("reshard")
        groups = [one for one in lookups_of(job) if one.is_sharded]
        if not groups:
            raise ConfigError(
                "the captured step has no fused embedding lookup with recorded shapes and a "
                "gradient (fbgemm's split_embedding_codegen_lookup_…), so there are no tables to "
                "move"
            )
        tables = Tables(groups)
        if self.balance:
            moved = tables.balance(job, platform)
            if not moved:
                job.notes.append("lookups are as even as whole tables allow; nothing moves")
            job.notes += [f"a table moves from rank {one} to rank {two}" for one, two in moved]
        for move in self.moves:
            if move.source in tables.ranks and move.share is not None:
                tables.move(move.source, move.target, move.share * tables.count(move.source))
            else:
                tables.move(move.source, move.target, move.tables or 0)
        pairs = [pair for rank in tables.ranks for pair in tables.lookups(rank)]
        self._kernels(job, pairs)
        self._exchanges(job, pairs)
        for rank in tables.ranks:
            old, new = tables.weight_bytes(rank)
            if old != new:
                job.notes.append(
                    f"rank {rank} holds {new / 2**20:.1f} MiB of tables instead of "
                    f"{old / 2**20:.1f} MiB, optimizer states not counted"
                )

    def _kernels(self, job: Job, pairs: list[tuple[LookupTasks, Lookup]]) -> None:
        """Re-times lookups, and what handles their indices and results on the same rank."""
        platform = job.machine.known_platform("reshard")
        forward = {task: pair for pair in pairs for task in pair[0].forward}
        by_rank: dict[int, list[tuple[LookupTasks, Lookup]]] = {}
        for pair in pairs:
            by_rank.setdefault(pair[0].rank, []).append(pair)
        after: dict[int, OperatorInputs] = {}
        for task in job.select(Selector(role=COMPUTING)):
            inputs = job.inputs_of(task)
            if inputs is None:
                continue
            if task in forward:
                group, new = forward[task]
                after[task] = rewritten_lookup(inputs, group.lookup, new)
                continue
            for group, new in by_rank.get(job.rank_of(task), ()):
                changed = rewritten(inputs, group.lookup, new)
                if changed is not inputs:
                    after[task] = changed
                    break
        # Gradients are read together with the lookups, whether their inputs change or not.
        tasks = tuple({**after, **{task: None for group, _ in pairs for task in group.backward}})
        before_s = kernel_times(job, tasks, platform)
        for task, inputs in after.items():
            describe_inputs(job, task, inputs)
        # A rank without tables has no lookup any more, but its tasks are still there.
        lookups = {task: new for group, new in pairs for task in group.tasks}
        retime_kernels(job, tasks, before_s, kernel_times(job, tasks, platform, lookups=lookups))

    def _exchanges(self, job: Job, pairs: list[tuple[LookupTasks, Lookup]]) -> None:
        """Re-times the all-to-alls of indices, lengths, pooled results and their gradients."""
        work = _rank_work(pairs)
        after: dict[int, CollectiveInfo] = {}
        pooled = 0
        for members in job.meetings(job.select(Selector(role=(Role.COLLECTIVE,)))):
            infos = {task: info for task in members if (info := job.collective_of(task))}
            mine = [task for task in infos if job.rank_of(task) in work]
            if not mine or any(info.operation != "all_to_all" for info in infos.values()):
                continue
            kind = _kind_of(job, infos, work)
            pooled += kind == "result"
            for task in mine if kind else ():
                after[task] = _exchanged(infos[task], kind, work[job.rank_of(task)])
        if after:
            resize_collectives(job, after, job.machine.cluster("reshard"))
        if not pooled:
            job.notes.append(
                "no all-to-all carries as many values as the pooled results have: only lookups "
                "are re-timed"
            )


#: Values of one rank's lookups before and after: indices, bags, pooled results.
_Work = dict[str, tuple[int, int]]


def _rank_work(pairs: list[tuple[LookupTasks, Lookup]]) -> dict[int, _Work]:
    result: dict[int, _Work] = {}
    for group, new in pairs:
        old, known = group.lookup, result.setdefault(group.rank, {})
        figures = {
            "result": (old.batch * old.total_dim, new.batch * new.total_dim),
            "indices": (old.indices, new.indices),
            "lengths": (old.tables * old.batch, new.tables * new.batch),
        }
        for name, (before, after) in figures.items():
            total = known.get(name, (0, 0))
            known[name] = (total[0] + before, total[1] + after)
    return result


def _kind_of(job: Job, infos: dict[int, CollectiveInfo], work: dict[int, _Work]) -> str:
    """Returns what an all-to-all carries: by its sizes on all ranks, its type and its phase."""
    mine = {task: info for task, info in infos.items() if job.rank_of(task) in work}

    def fits(kind: str, *, sent: bool) -> bool:
        return all(
            (info.input_elements if sent else info.output_elements)
            == work[job.rank_of(task)][kind][0]
            for task, info in mine.items()
        )

    integers = all(info.dtype in ("int32", "int64") for info in mine.values())
    if integers:
        return next((kind for kind in ("indices", "lengths") if fits(kind, sent=False)), "")
    backward = all(job.phase_of(task) == Phase.BACKWARD for task in mine)
    if backward:
        return "gradient" if fits("result", sent=False) else ""
    return "result" if fits("result", sent=True) else ""


def _exchanged(info: CollectiveInfo, kind: str, work: _Work) -> CollectiveInfo:
    """Returns an all-to-all with the side that depends on the tables of its rank."""
    figure = work["result" if kind == "gradient" else kind][1]
    if kind != "result":
        return replace(info, output_elements=figure, output_splits=())
    value_bytes = info.message_bytes / info.input_elements if info.input_elements else 0
    size = round(figure * value_bytes) if info.message_bytes >= 0 else -1
    return replace(info, input_elements=figure, input_splits=(), message_bytes=size)
