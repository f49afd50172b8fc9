"""Embedding tables on other ranks."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from dse.config import Fraction, StrictModel
from dse.errors import ConfigError
from dse.trace.whatif.core import Optimization
from dse.trace.whatif.retime import Tables, lookups_of, retime_all_to_alls, retime_lookups

if TYPE_CHECKING:
    from dse.trace.whatif.core import StepEditor

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

    The tables of one fused lookup are taken to be alike, since traces do not distinguish them.

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
    def _one_of_both(self) -> Reshard:
        if bool(self.moves) == self.balance:
            raise PydanticCustomError("reshard", "expected either `moves` or `balance`")
        return self

    @property
    def title(self) -> str:
        """What moves."""
        return "reshard=" + ("balance" if self.balance else ";".join(map(str, self.moves)))

    def apply(self, editor: StepEditor) -> None:
        """Moves tables and re-times lookups and all-to-alls."""
        platform = editor.machine.known_platform("reshard")
        groups = [one for one in lookups_of(editor) if one.is_sharded]
        if not groups:
            raise ConfigError(
                "the captured step has no fused embedding lookup with recorded shapes and a "
                "gradient (fbgemm's split_embedding_codegen_lookup_…), so there are no tables to "
                "move"
            )
        tables = Tables(groups)
        if self.balance:
            moved = tables.balance(editor, platform)
            if not moved:
                editor.notes.append("lookups are as even as whole tables allow; nothing moves")
            for (source, target), count in Counter(moved).items():
                what = "a table moves" if count == 1 else f"{count} tables move"
                editor.notes.append(f"{what} from rank {source} to rank {target}")
        for move in self.moves:
            if move.source in tables.ranks and move.share is not None:
                tables.move(move.source, move.target, move.share * tables.count(move.source))
            else:
                tables.move(move.source, move.target, move.tables or 0)
        pairs = [pair for rank in tables.ranks for pair in tables.lookups(rank)]
        retime_lookups(editor, pairs, platform)
        if not retime_all_to_alls(editor, pairs, editor.machine.cluster("reshard")):
            editor.notes.append(
                "no all-to-all carries as many values as the pooled results have: only lookups "
                "are re-timed"
            )
        for rank in tables.ranks:
            old, new = tables.weight_bytes(rank)
            if old != new:
                editor.notes.append(
                    f"rank {rank} holds {new / 2**20:.1f} MiB of tables instead of "
                    f"{old / 2**20:.1f} MiB, optimizer states not counted"
                )
