"""Options that several commands share, and the text of options as values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from dse.errors import ConfigError, UnknownNameError

if TYPE_CHECKING:
    from dse.config import UnitKind

ModelArgument = Annotated[str, typer.Argument(metavar="MODEL", help="Model name or YAML file.")]
StudyArgument = Annotated[Path, typer.Argument(metavar="STUDY_DIR", help="A study folder.")]
TRACES_HELP = "Kineto traces: .json, .json.gz, .tar.gz, or folders with one file a rank."
TracesArgument = Annotated[list[Path], typer.Argument(metavar="TRACE...", help=TRACES_HELP)]

PlatformOption = Annotated[str, typer.Option("--platform", help="Platform name or YAML file.")]
WorldSizeOption = Annotated[int, typer.Option("--world-size", min=1, help="Number of ranks.")]
BatchOption = Annotated[
    int, typer.Option("--global-batch-size", min=1, help="Samples of one iteration, all ranks.")
]
LinkOption = Annotated[
    str, typer.Option("--link", help="Interconnect inside a node; the platform's by default.")
]
NetworkOption = Annotated[
    str,
    typer.Option(
        "--network",
        help="Network between nodes; by default the platform's, or one of the instances that "
        "prices are asked of.",
    ),
]
PriceBasisOption = Annotated[
    str,
    typer.Option(
        "--price-basis", help="on_demand (the default), capacity_block, reserved or spot."
    ),
]
PriceProviderOption = Annotated[
    str,
    typer.Option(
        "--price-provider",
        help="Only this provider's prices. Without --network, several nodes are connected as its "
        "instances are.",
    ),
]
PrecisionOption = Annotated[
    str, typer.Option("--precision", help="fp32, tf32, fp16 or bf16; the model's by default.")
]
LaunchOption = Annotated[
    str,
    typer.Option("--launch", help="eager or cuda_graphs; by default as the program does."),
]
TrainPipelineOption = Annotated[
    str,
    typer.Option(
        "--train-pipeline",
        help="base, sparse_dist, fused_sparse_dist, prefetch or semi_sync; by default as the "
        "program does.",
    ),
]
HotRowsOption = Annotated[
    bool | None,
    typer.Option(
        "--hot-rows/--no-hot-rows",
        help="Whether plans may keep popular rows on every rank; by default if the program can.",
    ),
]
WireOption = Annotated[
    str,
    typer.Option(
        "--communication-precision",
        metavar="FORMAT",
        help="Format of pooled embeddings on the wire: fp32, fp16, bf16, fp8, int8 or mx4; "
        "`fp16/bf16` for outputs and gradients; by default as the program does.",
    ),
]
KernelsOption = Annotated[
    str,
    typer.Option(
        "--compute-kernels",
        metavar="KERNELS",
        help="Kernels of the tables: fused (in device memory, the default), fused_uvm, "
        "fused_uvm_caching (in host memory), such as `fused,fused_uvm_caching`.",
    ),
]
TableTypeOption = Annotated[
    str,
    typer.Option(
        "--table-data-type",
        metavar="TYPE",
        help="Type of all embedding rows: fp32, fp16, bf16, fp8 or int8; the model's by default.",
    ),
]
ProgramOption = Annotated[
    str,
    typer.Option(
        "--program",
        "--software",
        "--software-profile",
        metavar="NAME",
        help="Training program: torchrec, hugectr, nemo, …; `dse list programs` has all. By "
        "default torchrec for recommendation models and megatron_bridge for transformers; `ideal` "
        "is a bound that no program reaches.",
    ),
]
ReplicasOption = Annotated[
    int | None,
    typer.Option(
        "--replicas",
        min=1,
        help="Sharding groups with a copy of all tables each (2D parallelism, as TorchRec's "
        "DMPCollection); 1 by default.",
    ),
]
ReplicaPlacementOption = Annotated[
    str,
    typer.Option(
        "--replica-placement",
        metavar="strided|contiguous",
        help="strided, the default: groups are spread over all nodes, copies are averaged inside "
        "nodes; contiguous: a group is whole nodes.",
    ),
]
SyncIntervalOption = Annotated[
    int | None,
    typer.Option(
        "--sync-interval",
        min=1,
        help="Iterations from one average of the copies to the next; 1 by default.",
    ),
]
StepOption = Annotated[
    str | None,
    typer.Option(
        "--step",
        metavar="NUMBER|ANNOTATION",
        help="Number of a profiler step, or name of an annotation, whose last occurrence counts; "
        "the last step by default.",
    ),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="PATH=VALUE",
        help="A figure of the platforms by its name in their YAML, and what becomes of it: "
        "price=2.10 USD/GPU/h, h100_sxm.price=40USD/h, link.bandwidth=+20%, "
        "device.memory.bandwidth=*1.5, network.latency=3us. Of all platforms unless one is named; "
        "may be repeated.",
    ),
]
JobsOption = Annotated[int, typer.Option("--jobs", min=1, help="Workers.")]
SeedOption = Annotated[int, typer.Option("--seed", min=0, help="Seed of all randomness.")]
TimelineOption = Annotated[
    Path | None,
    typer.Option(
        "--timeline",
        metavar="FILE",
        help="Write the time line for ui.perfetto.dev or chrome://tracing; compressed if the name "
        "ends in .gz.",
    ),
]
ForceOption = Annotated[
    bool, typer.Option("--force", help="Replace files that this command did not write.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]

Member = TypeVar("Member", bound=StrEnum)
Value = TypeVar("Value")


def folder_of(text: str) -> Path:
    """Returns the folder of an option; an empty text, such as an unset variable, names none.

    Raises:
        BadParameter: The text is empty.
    """
    if not text:
        raise typer.BadParameter("an empty name; give a folder, or `.` for this one")
    return Path(text)


def member(kind: type[Member], text: str, option: str) -> Member:
    """Returns the member of an enumeration that an option names.

    Raises:
        ConfigError: The enumeration has no such member.
    """
    try:
        return kind(text)
    except ValueError:
        expected = ", ".join(known.value for known in kind)
        raise ConfigError(f"{option}: expected one of {expected}; found `{text}`") from None


def parsed(option: str, read: Callable[[str], Value], text: str) -> Value:
    """Returns the value of an option's text.

    Raises:
        ConfigError: The text cannot be read; names the option.
    """
    try:
        return read(text)
    except ValueError as error:
        raise ConfigError(f"{option}: {error}") from error


def price_basis(text: str) -> str:
    """Returns the basis of prices that an option names.

    Raises:
        UnknownNameError: There is no such basis.
    """
    from dse._suggest import hint

    known = ("on_demand", "capacity_block", "reserved", "spot")
    if text not in known:
        raise UnknownNameError(f"--price-basis: unknown basis `{text}`; {hint(text, known)}")
    return text


def quantity(option: str, text: str, kind: UnitKind) -> float:
    """Returns a quantity in SI units.

    Raises:
        ConfigError: The text is not a quantity of this kind; names the option.
    """
    from dse.config import parse_quantity

    return parsed(option, lambda given: parse_quantity(given, kind), text)


def listed(text: str) -> tuple[str, ...]:
    """Returns the parts of a comma-separated list."""
    return tuple(part.strip() for part in text.split(",") if part.strip())


def joined(text: str) -> str:
    """Returns a comma-separated list as the one value that a study keeps of a set."""
    return "+".join(listed(text))


def whole_numbers(option: str, text: str) -> tuple[int, ...]:
    """Returns a comma-separated list of numbers.

    Raises:
        ConfigError: A part is not a whole number.
    """
    for part in listed(text):
        if not part.isdecimal():
            raise ConfigError(f"{option}: expected whole numbers such as `8,16`, found `{part}`")
    return tuple(map(int, listed(text)))


def pairs(option: str, texts: Sequence[str] | None) -> dict[str, str]:
    """Returns the two sides of each `NAME=VALUE`.

    Raises:
        ConfigError: A text has another form.
    """
    found = {}
    for text in texts or ():
        left, _, right = text.partition("=")
        if not (left and right):
            raise ConfigError(f"{option} {text}: expected two names with `=` between them")
        found[left] = right
    return found


def step(text: str | None) -> int | str | None:
    """Returns what `--step` names: the number of a profiler step, or an annotation."""
    return int(text) if text is not None and text.strip().isdecimal() else text
