"""One configuration as the options of `dse predict`, and what a second one changes of it."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dse.errors import ConfigError

if TYPE_CHECKING:
    from dse.model import DlrmModel, TransformerModel

#: Plans that are not files: found by search, or that of the first configuration.
SEARCH_PLAN = "search"
SAME_PLAN = "same"

_FILE_ENDINGS = (".yaml", ".yml", ".json")
_YES_OR_NO = {"true": True, "yes": True, "false": False, "no": False}
_NUMBERS = (
    "world_size",
    "global_batch_size",
    "tensor",
    "pipeline",
    "context",
    "interleave",
    "micro_batch_size",
)

#: Options that only one kind of model has.
_DLRM_KEYS: tuple[str, ...] = ("plan", "launch", "host_profile")
_TRANSFORMER_KEYS: tuple[str, ...] = (
    "tensor",
    "pipeline",
    "context",
    "interleave",
    "sequence_parallel",
    "micro_batch_size",
    "recompute",
    "data_sharding",
)

#: Other names of keys.
_ALIASES = {
    "software": "program",
    "software_profile": "program",
    "virtual_pipeline_stages": "interleave",
    "zero_stage": "data_sharding",
}


@dataclass(frozen=True, slots=True)
class Request:
    """One configuration as given by options; fields without a value are empty.

    Attributes:
        model: Model name or file.
        platform: Platform name or file.
        world_size: Number of ranks.
        global_batch_size: Samples of one iteration over all ranks.
        link: Interconnect inside a node; the platform's own by default.
        network: Network between nodes; the platform's own by default.
        precision: Arithmetic; the model's own by default.
        program: Training program.
        plan: Plan file, ``search`` (the default), or ``same`` for a second configuration.
        launch: How the host launches kernels; the program's own way by default.
        host_profile: File of host overheads; the platform's own by default.
        tensor: Tensor-parallel ranks.
        pipeline: Pipeline stages.
        context: Context-parallel ranks.
        interleave: Virtual pipeline stages of a stage.
        sequence_parallel: Whether tensor-parallel ranks share norms and residuals.
        micro_batch_size: Samples of one pass through a stage.
        recompute: What the backward pass recomputes.
        data_sharding: ZeRO stage.
    """

    model: str
    platform: str
    world_size: int
    global_batch_size: int
    link: str = ""
    network: str = ""
    precision: str = ""
    program: str = ""
    plan: str = ""
    launch: str = ""
    host_profile: str = ""
    tensor: int | None = None
    pipeline: int | None = None
    context: int | None = None
    interleave: int | None = None
    sequence_parallel: bool | None = None
    micro_batch_size: int | None = None
    recompute: str = ""
    data_sharding: str = ""

    def check_kind(self, model: DlrmModel | TransformerModel) -> None:
        """Checks that only options of the model's kind are given.

        Raises:
            ConfigError: An option of the other kind is given; names it.
        """
        from dse.model import TransformerModel

        kind, wrong, instead = "a recommendation model", _TRANSFORMER_KEYS, _DLRM_KEYS
        if isinstance(model, TransformerModel):
            kind, wrong, instead = "a transformer", _DLRM_KEYS, _TRANSFORMER_KEYS
        given = [key for key in wrong if getattr(self, key) not in (None, "")]
        if given:
            raise ConfigError(
                f"{_options(given)}: not for `{model.name}`, which is {kind}; its own options are "
                f"{_options(instead)}"
            )


def _options(keys: tuple[str, ...] | list[str]) -> str:
    return ", ".join(f"--{key.replace('_', '-')}" for key in keys)


#: Keys of `--versus`.
KEYS = tuple(field.name for field in fields(Request))


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
    other = replace(request, **checked)
    if other == request:
        raise ConfigError(
            f"--versus: `{versus}` changes nothing; give at least one of {', '.join(KEYS)} "
            "another value than the first configuration has"
        )
    return other, tuple(f"{key} {value}" for key, value in checked.items())


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
    from dse._suggest import nearest

    name = key.removeprefix("--").replace("-", "_")
    name = _ALIASES.get(name, name)
    if name in KEYS:
        return name
    near = nearest(name, KEYS)
    meant = f"did you mean `{near}`? " if near else ""
    raise ConfigError(f"--versus: unknown key `{key}`; {meant}keys are {', '.join(KEYS)}")


def _checked(key: str, value: object) -> str | int | bool:
    if key == "sequence_parallel":
        given = str(value).lower()
        if given not in _YES_OR_NO:
            raise ConfigError(f"--versus: {key}: expected true or false, found `{value}`")
        return _YES_OR_NO[given]
    if key in _NUMBERS:
        try:
            number = int(str(value).replace("_", ""))
        except ValueError:
            number = 0
        if number < 1:
            raise ConfigError(f"--versus: {key}: expected a whole number from 1, found `{value}`")
        return number
    if isinstance(value, dict | list | bool):
        raise ConfigError(f"--versus: {key}: expected text, found `{value}`")
    return "" if value is None else str(value)
