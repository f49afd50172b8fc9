"""Errors of command-line arguments, in the form of all other errors."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import typer

from dse._text.suggest import hint, nearest

if TYPE_CHECKING:
    from collections.abc import Iterator

#: What is raised for wrong arguments; Typer publishes only this class derived from it.
UsageError: type[Any] = typer.BadParameter.__bases__[0]

#: Options of other tools and what they are called here.
_MEANT = {
    "batch-size": "global-batch-size",
    "batch": "global-batch-size",
    "gpus": "world-size",
    "ranks": "world-size",
    "tp": "tensor",
    "pp": "pipeline",
    "cp": "context",
    "ep": "expert",
}

_CHOICES = re.compile(r"'(?P<given>[^']*)' is not one of (?P<choices>.*)\.$", re.DOTALL)


def usage_problem(error: Any) -> str:
    """Returns what is wrong with the arguments of a command, and the next step.

    Args:
        error: A :data:`UsageError`.
    """
    context = error.ctx
    path = context.command_path if context is not None else "dse"
    help_text = f"`{path} --help` explains all arguments"
    name = getattr(error, "option_name", "")
    if name and hasattr(error, "possibilities"):
        return f"{name}: no such option; {_option_hint(name, context) or help_text}"
    if name:
        missing = "requires an argument" in error.message
        problem = "its value is missing" if missing else _sentence(error.message)
        return f"{name}: {problem}; {help_text}"
    param = getattr(error, "param", None)
    if param is None:
        command = re.search(r"No such command '(.*?)'", error.message)
        if command is not None:
            known = context.command.list_commands(context)
            return f"`{command[1]}`: no such command; {hint(command[1], known)}"
        return f"{_sentence(error.message)}; {help_text}"
    label = _label(param)
    if type(error).__name__ == "MissingParameter":
        return f"{label} is missing; {help_text}"
    return f"{label}: {_value_problem(error)}"


def _label(param: Any) -> str:
    """Returns an option by its longest name, and an argument by the word for it."""
    if param.param_type_name == "argument":
        return str(param.metavar or param.name.upper())
    return str(max(param.opts, key=len))


def _option_hint(name: str, context: Any) -> str:
    known = [option for option in _options(context) if option.startswith("--")]
    meant = f"--{_MEANT.get(name.lstrip('-'), '')}"
    near = meant if meant in known else nearest(name, known)
    return f"did you mean `{near}`?" if near else ""


def _options(context: Any) -> Iterator[str]:
    for param in context.command.get_params(context) if context is not None else ():
        if param.param_type_name == "option":
            yield from (*param.opts, *param.secondary_opts)


def _value_problem(error: Any) -> str:
    """Returns what is wrong with a value, in the words for values in files where there are any."""
    choice = _CHOICES.search(error.message)
    if choice is not None:
        choices = re.findall(r"'([^']*)'", choice["choices"])
        given = choice["given"]
        near = nearest(given, choices)
        meant = f" (did you mean `{near}`?)" if near else ""
        offered = ", ".join(f"`{name}`" for name in choices)
        return f"expected one of {offered}{meant}, found `{given}`"
    cause = error.__cause__
    if hasattr(cause, "errors"):
        from dse.config import problem_text

        return problem_text(cause.errors(include_url=False)[0])
    return _sentence(error.message)


def _sentence(message: str) -> str:
    text = message.strip().rstrip(".")
    return text[:1].lower() + text[1:]
