"""Commands with their help: options and commands in groups, and examples."""

from __future__ import annotations

from textwrap import wrap
from typing import TYPE_CHECKING, Any

from typer import Typer
from typer.core import TyperCommand, TyperGroup

if TYPE_CHECKING:
    from collections.abc import Callable

#: Begins paragraphs whose lines stay as they are.
_KEEP = "\b"

#: Widest help, widest first column, and the narrowest terminal, in characters.
_WIDEST, _WIDEST_NAME, _NARROWEST = 100, 34, 80

#: Other names of options, without their dashes.
_ALIASES = {
    "software": "program",
    "software-profile": "program",
    "recompute-num-layers": "recompute-layers",
    "lanes": "streams",
    "overwrite": "force",
}

#: Settings of the program, which its commands inherit.
SETTINGS = {
    "help_option_names": ["-h", "--help"],
    "max_content_width": _WIDEST,
    "token_normalize_func": lambda name: _ALIASES.get(name, name),
}


def examples(*lines: str) -> str:
    """Returns the end of a command's help.

    Args:
        lines: Commands as they are typed, each on one line.
    """
    return "\n".join((_KEEP, "Examples:", *map(_continued, lines)))


def _continued(command: str) -> str:
    """Returns a command in lines that fit a narrow terminal, which a shell joins."""
    first, *options = command.split(" --")
    lines = [f"  {first}"]
    for option in options:
        if len(lines[-1]) + len(option) + len(" -- \\") > _NARROWEST:
            lines[-1] += " \\"
            lines.append(f"    --{option}")
        else:
            lines[-1] += f" --{option}"
    return "\n".join(lines)


class _Sections:
    """Help in sections, whose lines end between words only, not at hyphens."""

    def format_help_text(self: Any, ctx: Any, formatter: Any) -> None:
        """Writes what the command does."""
        del ctx
        formatter.write_paragraph()
        with formatter.indentation():
            paragraphs = (self.help or "").split("\n\n")
            width = formatter.width - formatter.current_indent
            formatter.write_text("\n\n".join(_wrapped(part, width) for part in paragraphs))

    def format_options(self: Any, ctx: Any, formatter: Any) -> None:
        """Writes a section for the arguments, and for each group of commands and options."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for name, command in getattr(self, "commands", {}).items():
            if not command.hidden:
                text = (command.help or "").split("\n\n")[0]
                sections.setdefault(command.rich_help_panel or "Commands", []).append((name, text))
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None:
                usual = "Arguments" if param.param_type_name == "argument" else "Options"
                panel = getattr(param, "rich_help_panel", None) or usual
                sections.setdefault(panel, []).append(record)
        _write_sections(sections, formatter)

    def format_epilog(self: Any, ctx: Any, formatter: Any) -> None:
        """Writes the examples."""
        del ctx
        if self.epilog:
            formatter.write_paragraph()
            formatter.write_text(self.epilog)


class Command(_Sections, TyperCommand):
    """A command whose help has its options in groups."""


class Group(_Sections, TyperGroup):
    """Commands whose help has them in groups."""


def command_group(text: str, *lines: str) -> Typer:
    """Returns commands under one name.

    Args:
        text: What they do.
        lines: Examples.
    """
    return Typer(
        cls=Group,
        no_args_is_help=True,
        rich_markup_mode=None,
        help=text,
        epilog=examples(*lines),
    )


def add_command(
    app: Typer, name: str, command: Callable[..., None], *lines: str, **settings: Any
) -> None:
    """Adds a command.

    Args:
        app: Where to.
        name: Its name.
        command: Reads its options and does it.
        lines: Examples.
        settings: Further settings of Typer.
    """
    app.command(name, cls=Command, epilog=examples(*lines), **settings)(command)


def _write_sections(sections: dict[str, list[tuple[str, str]]], formatter: Any) -> None:
    # All sections have their text in the same column.
    names = [name for rows in sections.values() for name, _ in rows]
    column = min(_WIDEST_NAME, max(map(len, names), default=0))
    width = formatter.width - column - 4
    for title, rows in sections.items():
        with formatter.section(title):
            padded = [(f"{name:<{column}}", _wrapped(text, width)) for name, text in rows]
            formatter.write_dl(padded, col_max=_WIDEST_NAME)


def _wrapped(text: str, width: int) -> str:
    """Returns a paragraph in lines that the formatter keeps."""
    lines = wrap(text, width, break_long_words=False, break_on_hyphens=False)
    return "\n".join((_KEEP, *lines))
