"""Options that several commands take."""

from __future__ import annotations

from typing import Annotated

import typer

ModelArgument = Annotated[str, typer.Argument(metavar="MODEL", help="Model name or YAML file.")]
PlatformOption = Annotated[str, typer.Option("--platform", help="Platform name or YAML file.")]
BatchOption = Annotated[
    int, typer.Option("--global-batch-size", min=1, help="Samples of one iteration, all ranks.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]
LinkOption = Annotated[
    str, typer.Option("--link", help="Interconnect inside a node; the platform's own by default.")
]
NetworkOption = Annotated[
    str, typer.Option("--network", help="Network between nodes; the platform's own by default.")
]
PrecisionOption = Annotated[
    str, typer.Option("--precision", help="fp32, tf32, fp16 or bf16; the model's own by default.")
]
LaunchOption = Annotated[str, typer.Option("--launch", help="eager or cuda_graphs.")]
