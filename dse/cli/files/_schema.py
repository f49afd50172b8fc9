"""`dse schema`: JSON Schema of the files that people write, for editors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:
    from pydantic import BaseModel


def schema_command(
    what: Annotated[
        Literal["space", "model", "platform", "host-profile", "constraints"],
        typer.Argument(
            metavar="KIND",
            help="Kind of file: space, model, platform, host-profile or constraints.",
        ),
    ],
) -> None:
    """Print the JSON Schema of files that people write, for editors."""
    import json

    from dse.config import json_schema

    typer.echo(json.dumps(json_schema(_document(what)), indent=2, ensure_ascii=False))


def _document(what: str) -> type[BaseModel]:
    if what == "space":
        from dse.search.space import SpaceDocument

        return SpaceDocument
    if what == "model":
        from dse.model import ModelFile

        return ModelFile
    if what == "constraints":
        from dse.sharding import ConstraintsDocument

        return ConstraintsDocument
    if what == "host-profile":
        from dse.machine.host import HostProfileDocument

        return HostProfileDocument
    from dse.machine.platforms import PlatformDocument

    return PlatformDocument
