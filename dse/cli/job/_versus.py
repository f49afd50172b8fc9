"""The second configuration of `dse predict --versus`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from dse.cli.job._options import JOB_OPTIONS, kinds_of, least_of
from dse.errors import ConfigError

if TYPE_CHECKING:
    from dse.cli.job._request import Request

_FILE_ENDINGS = (".yaml", ".yml", ".json")
_YES_OR_NO = {"true": True, "yes": True, "false": False, "no": False}

#: Other names of keys.
_ALIASES = {
    "software": "program",
    "software_profile": "program",
    "virtual_pipeline_stages": "interleave",
    "zero_stage": "data_sharding",
}

#: Keys of `--versus`.
KEYS = tuple(name for name in JOB_OPTIONS if name != "overrides")


def changed(request: Request, versus: str) -> tuple[Request, tuple[str, ...]]:
    """Returns the second configuration, and each key that it changes with the new value.

    Args:
        request: The first configuration.
        versus: `key=value,key=value`, or a YAML or JSON file with the same keys.

    Raises:
        ConfigError: A key does not exist, comes twice or has an impossible value, or nothing is
            changed.
    """
    values = _from_file(versus) if _is_file(versus) else _from_text(versus)
    checked: dict[str, Any] = {key: _checked(key, value) for key, value in values.items()}
    other = request.changed(checked)
    if other == request:
        raise ConfigError(
            f"--versus: `{versus}` changes nothing; give at least one of {', '.join(KEYS)} "
            "another value than the first configuration has"
        )
    return other, tuple(f"{key} {_text(value)}" for key, value in checked.items())


def _text(value: object) -> str:
    """Returns a value as text; a platform that is derived from another by its name."""
    if not isinstance(value, dict):
        return str(value)
    from dse.machine.platforms import load_platform

    return load_platform(value).name


def _is_file(versus: str) -> bool:
    # `plan=other.json` ends like a file name.
    return versus.lower().endswith(_FILE_ENDINGS) and ("=" not in versus or Path(versus).is_file())


def _from_text(versus: str) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for pair in versus.split(","):
        key, sign, value = pair.partition("=")
        if not sign:
            raise ConfigError(
                f"--versus: expected key=value pairs with commas between them, found `{pair}`; a "
                f"file has to end in {', '.join(_FILE_ENDINGS)}"
            )
        name = _known(key.strip())
        if name in values:
            raise ConfigError(f"--versus: `{name}` is given twice")
        values[name] = value.strip()
    return values


def _from_file(path: str) -> dict[str, Any]:
    from dse.config import parse_plain, read_source

    # YAML contains JSON.
    found = parse_plain(read_source(path).text, file=path)
    if not isinstance(found, dict):
        raise ConfigError(f"{path}: expected keys with values; keys are {', '.join(KEYS)}")
    return {_known(str(key)): value for key, value in found.items()}


def _known(key: str) -> str:
    from dse._text.suggest import nearest

    name = key.removeprefix("--").replace("-", "_")
    name = _ALIASES.get(name, name)
    if name in KEYS:
        return name
    near = nearest(name, KEYS)
    meant = f"did you mean `{near}`? " if near else ""
    raise ConfigError(f"--versus: unknown key `{key}`; {meant}keys are {', '.join(KEYS)}")


def _checked(key: str, value: object) -> str | int | bool | dict[str, object]:
    if key == "platform" and isinstance(value, dict):
        return value
    if bool in kinds_of(key):
        given = str(value).lower()
        if given not in _YES_OR_NO:
            raise ConfigError(f"--versus: {key}: expected true or false, found `{value}`")
        return _YES_OR_NO[given]
    if int in kinds_of(key):
        try:
            number = int(str(value).replace("_", ""))
        except ValueError:
            number = -1
        if number < (least := least_of(key)):
            raise ConfigError(
                f"--versus: {key}: expected a whole number from {least}, found `{value}`"
            )
        return number
    if isinstance(value, dict | list | bool):
        raise ConfigError(f"--versus: {key}: expected text, found `{value}`")
    return "" if value is None else str(value)
