"""Differences between what two studies were made from."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from dse.errors import DseError
from dse.search._load import stored_platform, stored_space
from dse.search._records import (
    BASE_ROLE,
    CALIBRATION_ROLE,
    CHANGES_ROLE,
    PLATFORM_ROLE,
    TrialRecord,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from dse.search._records import StudyResult
    from dse.search.space import SearchSpace

#: Longest value that is shown.
_LONGEST = 60

#: Kinds of differences that change predictions; others only decide which candidates exist.
_MOVING = frozenset({"model", "platform", CALIBRATION_ROLE, "trace", "steps", "version", "space"})


@dataclass(frozen=True, slots=True)
class InputDifference:
    """One input or setting that differs between two studies.

    Attributes:
        kind: ``model``, ``platform``, ``calibration``, ``trace``, ``steps``, ``space``,
            ``version``, ``setting`` or ``objective``.
        name: Platform, package or field.
        quantity: Its figure that differs; empty where all of it does.
        first: Value in the first study; empty where the study lacks it.
        second: Value in the second study; empty where the study lacks it.
    """

    kind: str
    name: str
    quantity: str
    first: str
    second: str

    @property
    def text(self) -> str:
        """The difference as a short text."""
        what = " ".join(word for word in (self.kind, self.name, self.quantity) if word)
        if not self.first or not self.second:
            return f"{what}: only in the {'first' if self.first else 'second'}"
        return f"{what}: {self.first} → {self.second}"

    @property
    def matters(self) -> bool:
        """Whether predictions depend on it."""
        if self.kind == "space":
            return self.name in ("links", "networks")
        return self.kind in _MOVING and not self.quantity.startswith("price ")

    def concerns(self, record: TrialRecord, defaults: Mapping[tuple[str, str], str]) -> bool:
        """Whether the prediction of a candidate's time depends on it.

        Args:
            record: The candidate.
            defaults: Name of the default link or network by platform and block.
        """
        if not self.matters:
            return False
        if self.kind not in ("platform", CALIBRATION_ROLE):
            return True
        chosen = dict(record.parameters)
        platform = str(chosen.get("platform", ""))
        if platform and platform != self.name.partition(":")[0]:
            return False
        block, _, rest = self.quantity.partition(".")
        if block not in ("links", "networks"):
            return True
        own = str(chosen.get(block.removesuffix("s"), "default"))
        if block == "networks" and record.prediction is not None and record.prediction.network:
            own = record.prediction.network
        if own == "default":
            own = defaults.get((platform, block), "")
        return not own or rest.rpartition(".")[0] == own


def default_wires(study: StudyResult) -> dict[tuple[str, str], str]:
    """Returns the default link and network of every platform of a study."""
    found: dict[tuple[str, str], str] = {}
    for file in study.inputs:
        if file.role == "platform":
            platform = stored_platform(study, file.name)
            found[file.name, "links"] = platform.links[0].name
            found[file.name, "networks"] = platform.networks[0].name
    return found


def input_differences(first: StudyResult, second: StudyResult) -> tuple[InputDifference, ...]:
    """Returns all differences, those that predictions depend on first."""
    found = [
        *_files(first, second),
        *_figures(first, second),
        *_versions(first, second),
        *_spaces(first, second),
        *_settings(first, second),
    ]
    return tuple(sorted(found, key=lambda difference: not difference.matters))


def _files(first: StudyResult, second: StudyResult) -> Iterator[InputDifference]:
    """Yields files by role and name; platforms of both studies are compared by their figures.

    What a platform that only one study has was measured with is part of the platform.
    """
    digests = [
        {
            (file.role, file.name): file.sha256
            for file in study.inputs
            if file.role not in (CHANGES_ROLE, "space")
        }
        for study in (first, second)
    ]
    if first.model_name != second.model_name:
        yield InputDifference("model", "", "", first.model_name, second.model_name)
    for role, name in dict.fromkeys([*digests[0], *digests[1]]):
        one, other = (known.get((role, name), "") for known in digests)
        if one == other or (role == "model" and first.model_name != second.model_name):
            continue
        if role in (PLATFORM_ROLE, BASE_ROLE) and one and other:
            continue
        if role == CALIBRATION_ROLE:
            platform = PLATFORM_ROLE, name.partition(":")[0]
            if any(platform not in known for known in digests):
                continue
        yield InputDifference(role, name, "", _short(one), _short(other))


def _short(digest: str) -> str:
    return f"sha256 {digest[:12]}" if digest else ""


def _figures(first: StudyResult, second: StudyResult) -> Iterator[InputDifference]:
    """Yields figures of the platforms that both have, from the facts that studies keep.

    Of a platform that only one has, the figures that a user gave it.
    """
    known = [
        {(fact.subject, fact.quantity): fact for fact in study.facts} for study in (first, second)
    ]
    both = {subject for subject, _ in known[0]} & {subject for subject, _ in known[1]}
    for subject, quantity in dict.fromkeys([*known[0], *known[1]]):
        facts = [figures.get((subject, quantity)) for figures in known]
        one, other = ("" if fact is None else fact.value for fact in facts)
        own = any(fact is not None and fact.of_user for fact in facts)
        if one != other and (subject in both or own):
            yield InputDifference("platform", subject, quantity, one, other)


def _versions(first: StudyResult, second: StudyResult) -> Iterator[InputDifference]:
    one, other = dict(first.versions), dict(second.versions)
    for package in dict.fromkeys([*one, *other]):
        if one.get(package) != other.get(package):
            yield InputDifference(
                "version", package, "", one.get(package, ""), other.get(package, "")
            )


def _spaces(first: StudyResult, second: StudyResult) -> Iterator[InputDifference]:
    """Yields fields of the search spaces, parameter by parameter."""
    try:
        spaces = [stored_space(study) for study in (first, second)]
    except DseError:
        texts = [
            next((file.sha256 for file in study.inputs if file.role == "space"), "")
            for study in (first, second)
        ]
        if texts[0] != texts[1]:
            yield InputDifference("space", "", "", _short(texts[0]), _short(texts[1]))
        return
    one, other = (_space_fields(space) for space in spaces)
    for name in dict.fromkeys([*one, *other]):
        if one.get(name) != other.get(name):
            yield InputDifference(
                "space", name, "", _shown(one.get(name, "")), _shown(other.get(name, ""))
            )


def _space_fields(space: SearchSpace) -> dict[str, str]:
    found = {
        f"parameters.{parameter.name}": ", ".join(map(str, parameter.choices))
        for parameter in space.parameters
    }
    found["objectives"] = ", ".join(
        f"{axis.metric} {'maximize' if axis.maximize else 'minimize'}" for axis in space.objectives
    )
    found["constraints"] = ", ".join(
        limit.metric
        + (f" at most {limit.at_most:g}" if limit.at_most is not None else "")
        + (f" at least {limit.at_least:g}" if limit.at_least is not None else "")
        for limit in space.constraints
    )
    found["pricing"] = " ".join(filter(None, (space.price_basis, space.price_provider)))
    found["links"] = ", ".join(
        f"{link.name} {link.bandwidth_bytes_per_s:g} B/s {link.latency_s:g} s"
        for link in space.links
    )
    found["networks"] = ", ".join(
        f"{network.name} {network.nics_per_node} × {network.nic_bandwidth_bytes_per_s:g} B/s "
        f"{network.latency_s:g} s"
        for network in space.networks
    )
    for field in fields(space.search):
        if field.name not in ("sampler", "seed"):
            found[f"search.{field.name}"] = str(getattr(space.search, field.name))
    return found


def _shown(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def _settings(first: StudyResult, second: StudyResult) -> Iterator[InputDifference]:
    for name, one, other in (
        ("seed", first.seed, second.seed),
        ("sampler", first.sampler, second.sampler),
        ("kind", first.kind, second.kind),
        ("evaluated", _evaluated(first), _evaluated(second)),
    ):
        if one != other:
            yield InputDifference("setting", name, "", str(one), str(other))


def _evaluated(study: StudyResult) -> int:
    return sum(record.evaluated for record in study.records)
