"""Reasons why configurations were left out, grouped."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dse.search._records import StudyResult, TrialRecord, TrialStatus


@dataclass(frozen=True, slots=True)
class ReasonGroup:
    """Configurations that were left out for the same kind of reason.

    Attributes:
        example: The reason of the first of them.
        status: Their status.
        count: How many they are.
    """

    example: str
    status: TrialStatus
    count: int


def group_reasons(records: Sequence[TrialRecord]) -> tuple[ReasonGroup, ...]:
    """Groups reasons that differ in their figures only, the most frequent group first."""
    counts: Counter[tuple[str, TrialStatus]] = Counter()
    examples: dict[tuple[str, TrialStatus], str] = {}
    for record in records:
        if record.reason:
            # Figures vary from trial to trial; the first words say what kind of reason it is.
            masked = re.sub(r"[\d.,]*\d(?:e[-+]?\d+)?", "#", record.reason)
            key = (" ".join(masked.split()[:4]), record.status)
            counts[key] += 1
            examples.setdefault(key, record.reason)
    return tuple(ReasonGroup(examples[key], key[1], count) for key, count in counts.most_common())


def nothing_feasible(study: StudyResult) -> str:
    """Returns why a study has no answer: it ended too early, or the most frequent reason."""
    records, certificate = study.records, study.certificate
    reasons = group_reasons(records)
    because = ""
    if reasons:
        most = reasons[0]
        because = f"; most often ({most.count} of {len(records)}): {most.example}"
    if reasons and certificate is not None and certificate.complete and certificate.distinct > 1:
        # Of what is proven infeasible, records are examples; how many there are says nothing.
        none = f"none of {certificate.distinct:,} outcomes"
        return f"nothing is feasible, {none}; for example: {reasons[0].example}"
    if certificate is None or certificate.complete:
        return f"nothing is feasible{because}" if reasons else "nothing was evaluated"
    go_on = "continue with --resume, without a time limit or with a longer one"
    count = sum(record.evaluated for record in records)
    if not count:
        return f"no answer yet: the search ended before its first evaluation; {go_on}"
    return (
        f"no answer yet: the search ended before it was complete, and nothing evaluated so far "
        f"({count}) is feasible{because}; {go_on}, and more --trials if they were limited"
    )
