"""Translation of pydantic errors into diagnostics."""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, RootModel

from dse._text.suggest import nearest
from dse.config._base import Document
from dse.config._yaml import field_name
from dse.errors import Diagnostic

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pydantic import ValidationError

from dse.config._yaml import LocatedData, Path

_MAX_SHOWN = 60
_BLOCK = "expected a block of keys and values"
#: Shortest key that is looked for in longer ones, and most keys that it may have been meant to be.
_SHORTEST_PART, _MAX_MEANT = 4, 3

#: Problems that are explained. More than are ever shown, and finding the nearest names for each of
#: the hundreds of thousands that a hostile file can have would take long.
_MAX_EXPLAINED = 1000


def diagnose(
    error: ValidationError, model: type[BaseModel], located: LocatedData, file: str
) -> list[Diagnostic]:
    """Returns one diagnostic for each invalid field, with its place in the file.

    Args:
        error: Error raised by pydantic.
        model: Class of the document, which defines the allowed keys.
        located: The data and its places.
        file: File name for messages.
    """
    model = chosen_class(model, located.data)
    found: dict[Path, Diagnostic] = {}
    for item in error.errors(include_url=False):
        path = _path_in_data(item["loc"], located.data)
        if not path and item["type"] in ("union_tag_invalid", "union_tag_not_found"):
            path = ("kind",)
        explained = len(found) < _MAX_EXPLAINED
        message = _message(item, path, model, located.data) if explained else str(item["msg"])
        place = _place(item["type"], path, located)
        line, column = place if place else (None, None)
        # A union reports one error for each alternative; the first is shown.
        found.setdefault(path, Diagnostic(file, line, column, field_name(path), message))
    return list(found.values())


def chosen_class(model: type[BaseModel], data: object) -> type[BaseModel]:
    """Returns the alternative that `kind` selects, if the document is a tagged union."""
    if not issubclass(model, RootModel) or not isinstance(data, dict):
        return model
    for kind in _models_in(model.model_fields["root"].annotation):
        if data.get("kind") in get_args(kind.model_fields["kind"].annotation):
            return kind
    return model


def _path_in_data(loc: tuple[int | str, ...], data: object) -> Path:
    """Drops the parts of a location that pydantic adds for union tags."""
    path: list[int | str] = []
    current = data
    for index, part in enumerate(loc):
        if isinstance(current, dict):
            if part in current:
                current = current[part]
                path.append(part)
            elif index == len(loc) - 1 and isinstance(part, str):
                path.append(part)
        elif isinstance(current, list) and isinstance(part, int) and part < len(current):
            current = current[part]
            path.append(part)
    return tuple(path)


def _place(kind: str, path: Path, located: LocatedData) -> tuple[int, int] | None:
    if kind == "extra_forbidden" and path in located.keys:
        return located.keys[path]
    while path not in located.values and path:
        path = path[:-1]
    return located.values.get(path)


def problem_text(item: Any) -> str:
    """Returns what is wrong with a single value, as in files.

    Args:
        item: One of the errors of a :class:`pydantic.ValidationError`.
    """
    return _message(item, (), BaseModel, None)


def _message(item: Any, path: Path, model: type[BaseModel], data: object) -> str:
    kind = item["type"]
    given = _shown(item.get("input"))
    context = item.get("ctx", {})
    if kind == "extra_forbidden":
        return _unknown_key(str(path[-1]), _allowed_keys(model, path[:-1], data))
    if kind == "missing" or (kind == "union_tag_not_found" and path == ("kind",)):
        return "this field is missing" + _meaning(model, path, data)
    plain = {
        "int_type": "expected a whole number",
        "int_parsing": "expected a whole number",
        "int_from_float": "expected a whole number",
        "float_type": "expected a number",
        "float_parsing": "expected a number",
        "finite_number": "expected a finite number",
        "bool_type": "expected true or false",
        "bool_parsing": "expected true or false",
        "list_type": "expected a list",
        "dict_type": _BLOCK,
        "model_type": _BLOCK,
        "model_attributes_type": _BLOCK,
        "string_type": "expected text",
    }
    if kind == "string_type" and isinstance(item.get("input"), bool):
        return f"expected text, found the switch {given}; put it in quotes"
    if kind in plain:
        keys = _required_keys(model, path, data) if plain[kind] == _BLOCK else ""
        return f"{plain[kind]}{keys}, found {given}"
    if kind in ("enum", "literal_error"):
        choice = _alternatives(context.get("expected", ""), item.get("input"))
        return f"expected {choice}, found {given}"
    if kind in ("union_tag_invalid", "union_tag_not_found"):
        expected = context.get("expected_tags", "")
        if path == ("kind",):
            given = _shown(context.get("tag"))
            return f"expected {_alternatives(expected, context.get('tag'))}, found {given}"
        return f"expected a `kind` out of {expected}, found {_shown(context.get('tag'))}"
    bounds = {
        "greater_than_equal": ("at least", "ge"),
        "greater_than": ("more than", "gt"),
        "less_than_equal": ("at most", "le"),
        "less_than": ("less than", "lt"),
    }
    if kind in bounds:
        comparison, key = bounds[kind]
        return f"expected {comparison} {context[key]}, found {given}"
    if kind in ("too_short", "string_too_short"):
        least, found = context["min_length"], context.get("actual_length", 0)
        noun = "character" if kind == "string_too_short" else "entry"
        return f"expected at least {least} {noun}, found {found or 'none'}"
    if kind in ("too_long", "string_too_long"):
        noun = "characters" if kind == "string_too_long" else "entries"
        return f"expected at most {context['max_length']} {noun}"
    return str(item["msg"])


def _alternatives(expected: str, given: object) -> str:
    names = [part.strip().strip("'") for part in expected.replace(" or ", ", ").split(",")]
    near = nearest(str(given), names)
    listed = ", ".join(f"`{name}`" for name in names)
    return f"one of {listed}" + (f" (did you mean `{near}`?)" if near else "")


def _unknown_key(key: str, known: Iterable[str]) -> str:
    allowed = sorted(known)
    # `batch_size` may be part of several keys.
    containing = [name for name in allowed if len(key) >= _SHORTEST_PART and key in name]
    near = containing[:_MAX_MEANT] or [name for name in (nearest(key, allowed),) if name]
    if near:
        return f"unknown key; did you mean {' or '.join(f'`{name}`' for name in near)}?"
    return f"unknown key; expected one of {', '.join(f'`{name}`' for name in allowed)}"


def _meaning(model: type[BaseModel], path: Path, data: object) -> str:
    """Returns what the field at `path` is for, in parentheses, where its class says so."""
    from dse.config._json_schema import field_descriptions

    for kind in _classes_at(model, path[:-1], data) if path else ():
        if described := field_descriptions(kind).get(str(path[-1])):
            first = described.partition(". ")[0].removesuffix(".")
            # Names such as `MLPs` keep their capitals.
            return f" ({first[0].lower() + first[1:] if first[1:2].islower() else first})"
    return ""


def _allowed_keys(model: type[BaseModel], path: Path, data: object) -> set[str]:
    """Returns the keys of every class that is allowed at `path`."""
    return {
        field.alias or name
        for kind in _classes_at(model, path, data)
        for name, field in kind.model_fields.items()
    }


def _required_keys(model: type[BaseModel], path: Path, data: object) -> str:
    """Returns the keys that a block has to have, in parentheses; empty for whole files."""
    kinds = _classes_at(model, path, data) if path else []
    # Which of several blocks was meant is not known.
    if len(kinds) != 1:
        return ""
    fields = kinds[0].model_fields.items()
    keys = [f"`{field.alias or name}`" for name, field in fields if field.is_required()]
    return f" ({', '.join(keys)})" if keys else ""


def _classes_at(model: type[BaseModel], path: Path, data: object) -> list[type[BaseModel]]:
    """Returns every class that is allowed at `path`."""
    here = [model]
    if path and issubclass(model, Document) and (chosen := model.chosen_block(path[0], data)):
        here, path = [chosen], path[1:]
    for part in path:
        here = [inner for kind in here for inner in _inside(kind, part)]
    return here


def _inside(kind: type[BaseModel], part: int | str) -> list[type[BaseModel]]:
    field = kind.model_fields.get(str(part))
    return list(_models_in(field.annotation)) if field is not None else [kind]


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    """Yields the document classes in an annotation, including those in lists, dicts and unions."""
    origin = get_origin(annotation)
    if origin is Annotated:
        yield from _models_in(get_args(annotation)[0])
    elif origin in (Union, types.UnionType, list, tuple, dict):
        for argument in get_args(annotation):
            yield from _models_in(argument)
    elif isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation


def _shown(value: object) -> str:
    if isinstance(value, dict):
        return "a block"
    if isinstance(value, list):
        return "a list"
    if value is None:
        return "nothing"
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return f"`{text[:_MAX_SHOWN]}{'…' if len(text) > _MAX_SHOWN else ''}`"
