"""A second configuration, given as what it changes of the first."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dse.errors import ConfigError

if TYPE_CHECKING:
    from dse.model import DlrmModel, TransformerModel

#: Plans that are no files: found by search, or the first configuration's own.
SEARCH_PLAN = "search"
SAME_PLAN = "same"

_FILE_ENDINGS = (".yaml", ".yml", ".json")
_NUMBERS = (
    "world_size",
    "global_batch_size",
    "tensor",
    "pipeline",
    "context",
    "interleave",
    "micro_batch_size",
)
_YES_OR_NO = ("sequence_parallel",)

#: What only one kind of model has.
DLRM_KEYS = ("plan", "launch", "host_profile", "software_profile")
TRANSFORMER_KEYS = (
    "tensor",
    "pipeline",
    "context",
    "interleave",
    "sequence_parallel",
    "micro_batch_size",
    "recompute",
    "data_sharding",
    "software",
)


@dataclass(frozen=True, slots=True)
class Asked:
    """One configuration as the options of `dse predict` give it; empty where they do not.

    Attributes:
        model: Model name or file.
        platform: Platform name or file.
        world_size: Number of ranks.
        global_batch_size: Samples of one iteration over all ranks.
        link: Interconnect inside a node; empty for the platform's own.
        network: Network between nodes; empty for the platform's own.
        precision: Arithmetic; empty for the model's own.
        plan: Plan file, `search`, or for a second configuration `same`; empty means `search`.
        launch: How the host issues kernels; empty for the program's own way.
        host_profile: File of host overheads; empty for the platform's.
        software_profile: Training program of a recommendation model.
        tensor: Ranks that share every matrix.
        pipeline: Pipeline stages.
        context: Ranks that share every sequence.
        interleave: Chunks of layers of one stage.
        sequence_parallel: Whether tensor-parallel ranks share norms and residuals.
        micro_batch_size: Samples of one pass through a stage.
        recompute: What is computed again in the backward pass.
        data_sharding: What data-parallel ranks keep only a part of.
        software: Training program of a transformer.
    """

    model: str
    platform: str
    world_size: int
    global_batch_size: int
    link: str = ""
    network: str = ""
    precision: str = ""
    plan: str = ""
    launch: str = ""
    host_profile: str = ""
    software_profile: str = ""
    tensor: int | None = None
    pipeline: int | None = None
    context: int | None = None
    interleave: int | None = None
    sequence_parallel: bool | None = None
    micro_batch_size: int | None = None
    recompute: str = ""
    data_sharding: str = ""
    software: str = ""

    def check_kind(self, model: DlrmModel | TransformerModel) -> None:
        """Checks that only options of the model's kind are given.

        Raises:
            ConfigError: One of the other kind is; names it and the kind.
        """
        from dse.model import TransformerModel

        kind = "a recommendation model"
        wrong: tuple[str, ...] = TRANSFORMER_KEYS
        instead: tuple[str, ...] = DLRM_KEYS
        if isinstance(model, TransformerModel):
            kind, wrong, instead = "a transformer", DLRM_KEYS, TRANSFORMER_KEYS
        given = [key for key in wrong if getattr(self, key) not in (None, "")]
        if given:
            names = ", ".join(_option(key) for key in given)
            raise ConfigError(
                f"{names}: not for `{model.name}`, which is {kind}; its own options are "
                f"{', '.join(_option(key) for key in instead)}"
            )


def _option(key: str) -> str:
    return f"--{key.replace('_', '-')}"


_WORDS = {"true": True, "yes": True, "false": False, "no": False}

#: What may be changed.
KEYS = tuple(field.name for field in fields(Asked))


def changed(asked: Asked, versus: str) -> tuple[Asked, tuple[str, ...]]:
    """Returns the second configuration, and what it changes in words.

    Args:
        asked: The first configuration.
        versus: `key=value,key=value`, or a YAML or JSON file with the same keys.

    Raises:
        ConfigError: A key does not exist, comes twice or has an impossible value, or nothing is
            changed.
    """
    values = _from_file(versus) if _is_file(versus) else _from_words(versus)
    checked: dict[str, Any] = {key: _checked(key, value) for key, value in values.items()}
    other = replace(asked, **checked)
    if other == asked:
        raise ConfigError(
            f"--versus: `{versus}` changes nothing; give at least one of {', '.join(KEYS)} "
            "another value than the first configuration has"
        )
    return other, tuple(f"{key} {value}" for key, value in checked.items())


def _is_file(versus: str) -> bool:
    # `plan=other.json` ends like a file, but is none.
    return versus.lower().endswith(_FILE_ENDINGS) and ("=" not in versus or Path(versus).is_file())


def _from_words(versus: str) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for word in versus.split(","):
        key, sign, value = word.partition("=")
        if not sign:
            raise ConfigError(
                f"--versus: expected key=value pairs with commas between them, found `{word}`; a "
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
    if name in KEYS:
        return name
    near = nearest(name, KEYS)
    meant = f"did you mean `{near}`? " if near else ""
    raise ConfigError(f"--versus: unknown key `{key}`; {meant}keys are {', '.join(KEYS)}")


def _checked(key: str, value: object) -> str | int | bool:
    if key in _YES_OR_NO:
        word = str(value).lower()
        if word not in _WORDS:
            raise ConfigError(f"--versus: {key}: expected true or false, found `{value}`")
        return _WORDS[word]
    if key in _NUMBERS:
        try:
            number = int(str(value).replace("_", ""))
        except ValueError:
            number = 0
        if number < 1:
            raise ConfigError(f"--versus: {key}: expected a whole number from 1, found `{value}`")
        return number
    if isinstance(value, dict | list | bool):
        raise ConfigError(f"--versus: {key}: expected a word, found `{value}`")
    return "" if value is None else str(value)
