"""What each command needs beyond the core, and whether it is here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dse.doctor._types import Finding, Status, Topic

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from dse.doctor._types import PackageFacts


@dataclass(frozen=True, slots=True)
class Need:
    """What commands need.

    Attributes:
        commands: As typed, without `dse`.
        packages: Packages beyond the core.
    """

    commands: str
    packages: tuple[str, ...] = ()


#: A page in a browser is read by whatever browser there is: no package draws it.
NEEDS = (
    Need("run, predict, shard, report, and all that is not below"),
    Need("calibrate, validate, replay, trace capture", ("torch",)),
    Need("run --sampler gp", ("torch",)),
    Need("run --executor ray", ("ray",)),
    Need("run --storage postgresql://…", ("psycopg",)),
    Need("run --storage mysql://…", ("pymysql",)),
    Need("dse.sharding.to_torchrec (Python)", ("torch", "torchrec", "fbgemm")),
)


def command_findings(packages: Iterable[PackageFacts]) -> Iterator[Finding]:
    """Yields which commands work."""
    listed = tuple(packages)
    lacking = [package for package in listed if package.required and not package.usable]
    for need in NEEDS:
        wanted = [*lacking, *_missing(listed, need.packages)]
        if not wanted:
            yield Finding(Topic.COMMANDS, need.commands, Status.OK, "")
            continue
        names = ", ".join(package.name for package in wanted)
        steps = dict.fromkeys(package.install for package in wanted)
        yield Finding(
            Topic.COMMANDS,
            need.commands,
            Status.BROKEN if lacking else Status.MISSING,
            f"lacks {names}",
            "; ".join(steps),
        )


def _missing(listed: Iterable[PackageFacts], names: Iterable[str]) -> list[PackageFacts]:
    return [
        package
        for name in names
        for package in listed
        # FBGEMM has one name for GPUs and another for CPUs.
        if package.name.startswith(name) and _is(package.name, name) and package.version is None
    ]


def _is(package: str, name: str) -> bool:
    return package == name or (name == "fbgemm" and package.startswith("fbgemm-gpu"))
