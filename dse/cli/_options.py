"""Options that several commands share, and the text of options as values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeVar

import typer

from dse.cli._complete import (
    KERNELS,
    PROGRAMS,
    WIRE_FORMATS,
    links,
    models,
    names,
    networks,
    platforms,
)
from dse.cli._complete import listed as listed_names
from dse.errors import ConfigError

if TYPE_CHECKING:
    from dse.config import UnitKind

#: Values of options; tests compare them with those of the library.
PrecisionName = Literal["fp32", "tf32", "fp16", "bf16", "fp8", "fp8_block", "mxfp8", "nvfp4"]
LaunchName = Literal["eager", "cuda_graphs"]
PipelineName = Literal["base", "sparse_dist", "fused_sparse_dist", "prefetch", "semi_sync"]
PlacementName = Literal["strided", "contiguous"]
TableTypeName = Literal["fp32", "fp16", "bf16", "fp8", "int8"]
BasisName = Literal["on_demand", "capacity_block", "reserved", "spot"]
DensePrecisionName = Literal["fp32", "tf32", "fp16", "bf16"]
DenseOptimizerName = Literal["sgd", "adagrad", "adam"]
SparseOptimizerName = Literal["sgd", "rowwise_adagrad", "adagrad", "adam"]
DeviceName = Literal["cpu", "cuda"]

MACHINE = "Machine and price"
DLRM = "Recommendation models"


def listed(text: str) -> tuple[str, ...]:
    """Returns the parts of a comma-separated list."""
    return tuple(part.strip() for part in text.split(",") if part.strip())


def joined(text: str) -> str:
    """Returns a comma-separated list as the one value that a study keeps of a set."""
    return "+".join(listed(text))


ModelArgument = Annotated[
    str,
    typer.Argument(metavar="MODEL", help="Model name or YAML file.", autocompletion=models),
]
StudyArgument = Annotated[Path, typer.Argument(metavar="STUDY_DIR", help="A study folder.")]
TRACES_HELP = "Kineto traces: .json, .json.gz, .tar.gz, or folders with one file per rank."
TracesArgument = Annotated[list[Path], typer.Argument(metavar="TRACE...", help=TRACES_HELP)]

PlatformOption = Annotated[
    str,
    typer.Option(
        "--platform",
        metavar="NAME",
        help="Platform name or YAML file.",
        autocompletion=platforms,
    ),
]
WorldSizeOption = Annotated[
    int, typer.Option("--world-size", metavar="N", min=1, help="Number of ranks.")
]
BatchOption = Annotated[
    int,
    typer.Option(
        "--global-batch-size", metavar="N", min=1, help="Samples of one iteration, all ranks."
    ),
]
LinkOption = Annotated[
    str,
    typer.Option(
        "--link",
        metavar="NAME",
        help="Interconnect inside a node; the platform's by default.",
        autocompletion=links,
        rich_help_panel=MACHINE,
    ),
]
NetworkOption = Annotated[
    str,
    typer.Option(
        "--network",
        metavar="NAME",
        help="Network between nodes; by default the platform's own if it can be rented, else "
        "that of the cheapest instances.",
        autocompletion=networks,
        rich_help_panel=MACHINE,
    ),
]
PriceBasisOption = Annotated[
    BasisName | None,
    typer.Option(
        "--price-basis",
        metavar="BASIS",
        help="on_demand (the default), capacity_block, reserved or spot.",
        rich_help_panel=MACHINE,
    ),
]
PriceProviderOption = Annotated[
    str,
    typer.Option(
        "--price-provider",
        metavar="NAME",
        help="Only this provider's prices and, without --network, its networks.",
        rich_help_panel=MACHINE,
    ),
]
PrecisionOption = Annotated[
    PrecisionName | None,
    typer.Option(
        "--precision",
        metavar="TYPE",
        help="fp32, tf32, fp16 or bf16; for transformers also fp8, fp8_block, mxfp8 or nvfp4. The "
        "model's by default.",
    ),
]
LaunchOption = Annotated[
    LaunchName | None,
    typer.Option(
        "--launch",
        metavar="MODE",
        help="How kernels are launched: eager or cuda_graphs; by default as the program does.",
    ),
]
TrainPipelineOption = Annotated[
    PipelineName | None,
    typer.Option(
        "--train-pipeline",
        metavar="NAME",
        help="base, sparse_dist, fused_sparse_dist, prefetch or semi_sync; by default as the "
        "program does.",
        rich_help_panel=DLRM,
    ),
]
HotRowsOption = Annotated[
    bool | None,
    typer.Option(
        "--hot-rows/--no-hot-rows",
        help="Whether plans may keep popular rows on every rank; by default if the program can.",
        rich_help_panel=DLRM,
    ),
]
WireOption = Annotated[
    str,
    typer.Option(
        "--communication-precision",
        metavar="FORMAT",
        help="Format of pooled embeddings on the wire: fp32, fp16, bf16, fp8, int8 or mx4; "
        "`fp16/bf16` for outputs and gradients; by default as the program does.",
        autocompletion=names(WIRE_FORMATS),
        rich_help_panel=DLRM,
    ),
]
KernelsOption = Annotated[
    str,
    typer.Option(
        "--compute-kernels",
        metavar="KERNELS",
        help="Kernels of the tables: fused (in device memory, the default), fused_uvm, "
        "fused_uvm_caching (in host memory), such as `fused,fused_uvm_caching`.",
        callback=joined,
        autocompletion=listed_names(names(KERNELS)),
        rich_help_panel=DLRM,
    ),
]
TableTypeOption = Annotated[
    TableTypeName | None,
    typer.Option(
        "--table-data-type",
        metavar="TYPE",
        help="Type of all embedding rows: fp32, fp16, bf16, fp8 or int8; the model's by default.",
        rich_help_panel=DLRM,
    ),
]
ProgramOption = Annotated[
    str,
    typer.Option(
        "--program",
        metavar="NAME",
        help="Training program: torchrec, hugectr, nemo, …; `dse list programs` has all. By "
        "default torchrec for recommendation models and megatron_bridge for transformers; `ideal` "
        "is a bound that no program reaches.",
        autocompletion=names(PROGRAMS),
    ),
]
ReplicasOption = Annotated[
    int | None,
    typer.Option(
        "--replicas",
        metavar="N",
        min=1,
        help="Sharding groups, each with a copy of all tables (2D parallelism, as in TorchRec's "
        "DMPCollection); 1 by default.",
        rich_help_panel=DLRM,
    ),
]
ReplicaPlacementOption = Annotated[
    PlacementName | None,
    typer.Option(
        "--replica-placement",
        metavar="WHERE",
        help="strided, the default: groups are spread over all nodes, copies are averaged inside "
        "nodes; contiguous: a group is whole nodes.",
        rich_help_panel=DLRM,
    ),
]
SyncIntervalOption = Annotated[
    int | None,
    typer.Option(
        "--sync-interval",
        metavar="N",
        min=1,
        help="Iterations between averages of the copies; 1 by default.",
        rich_help_panel=DLRM,
    ),
]
StepOption = Annotated[
    str | None,
    typer.Option(
        "--step",
        metavar="STEP",
        help="Number of a profiler step, or name of an annotation, whose last occurrence counts; "
        "the last step by default.",
    ),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="PATH=VALUE",
        help="Change a figure of the platforms, by its name in their YAML: "
        "price=2.10USD/GPU/h, h100_sxm.price=40USD/h, link.bandwidth=+20%, memory=*1.5, "
        "network.latency=3us. Applies to all platforms unless one is named; may be repeated.",
        rich_help_panel=MACHINE,
    ),
]
HostProfileOption = Annotated[
    str,
    typer.Option(
        "--host-profile",
        metavar="FILE",
        help="Host overheads from traces, written by `dse trace overheads --out`, in place of "
        "the platforms'; short for --set host.profile=FILE.",
        rich_help_panel=MACHINE,
    ),
]
JobsOption = Annotated[int, typer.Option("--jobs", metavar="N", min=1, help="Workers.")]
SeedOption = Annotated[int, typer.Option("--seed", metavar="N", min=0, help="Random seed.")]
TimelineOption = Annotated[
    Path | None,
    typer.Option(
        "--timeline",
        metavar="FILE",
        help="Write the time line for ui.perfetto.dev or chrome://tracing; compressed if the name "
        "ends in .gz.",
    ),
]
ForceOption = Annotated[bool, typer.Option("--force", help="Replace files that exist.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]

Member = TypeVar("Member", bound=StrEnum)
Value = TypeVar("Value")


def with_host_profile(changes: Sequence[str] | None, host_profile: str) -> tuple[str, ...]:
    """Returns what `--set` and `--host-profile` change of the platforms."""
    measured = (f"host.profile={host_profile}",) if host_profile else ()
    return *(changes or ()), *measured


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


def new_file(option: str, path: Path | None, *, force: bool) -> None:
    """Refuses to replace a file that has something in it, or what is no file.

    Args:
        option: The option that names the file.
        path: The file, if there is one to write.
        force: Whether it may be replaced.

    Raises:
        ConfigError: The file exists, or a folder or a device does.
    """
    from dse._io.reading import check_writable

    if path is None:
        return
    check_writable(path)
    if not force and path.is_file() and path.stat().st_size:
        raise ConfigError(f"{option} {path}: exists; choose another name, or pass --force")


def quantity(option: str, text: str, kind: UnitKind) -> float:
    """Returns a quantity in SI units.

    Raises:
        ConfigError: The text is not a quantity of this kind above 0; names the option.
    """
    from dse.config import parse_quantity

    value = parsed(option, lambda given: parse_quantity(given, kind), text)
    if not value > 0:
        raise ConfigError(f"{option}: expected more than 0, found `{text}`")
    return value


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
