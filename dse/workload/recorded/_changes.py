"""Changes of a captured step: from parameters to optimizations, and to a file of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dse.config import parse_plain
from dse.errors import ConfigError
from dse.workload._parameters import SAME_PLATFORM, named
from dse.workload.recorded._parameters import (
    NO_OPTIMIZATION,
    OPTIMIZATION_SEPARATOR,
    is_step_file,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from dse.machine.platforms import Platform
    from dse.trace.whatif import Change
    from dse.workload._parameters import ParameterValue


def machine_changes(
    parameters: Mapping[str, ParameterValue],
    captured_world_size: int,
    device_name: str,
    derived: Mapping[str, Mapping[str, object]],
) -> tuple[dict[str, object], ...]:
    """Returns the changes of the machine as a file has them: device, number of ranks, links.

    Args:
        parameters: The outer parameters.
        captured_world_size: Ranks of the captured job.
        device_name: Devices of the captured job; empty for CPUs.
        derived: Mappings of the platforms that are derived from others, by their names.
    """
    from dse.trace.whatif import optimization_options

    steps: list[dict[str, object]] = []
    platform = str(parameters.get("platform", SAME_PLATFORM))
    chosen = {kind: named(parameters, kind) for kind in ("link", "network")}
    options: dict[str, object] = {kind: name for kind, name in chosen.items() if name}
    if platform != SAME_PLATFORM:
        device = "gpu" if device_name else "device"
        target = dict(derived[platform]) if platform in derived else platform
        steps.append({"optimization": device, "platform": target, **options})
        options = {}
    world_size = int(parameters.get("world_size", captured_world_size))
    if world_size != captured_world_size:
        steps.append(dict(optimization_options(f"data_parallel={world_size}")))
    factor = float(parameters.get("network_factor", 1.0))
    if factor != 1.0:
        options["factor"] = f"{factor:g}"
    if options:
        steps.append({"optimization": "network", **options})
    return tuple(steps)


def with_captured_platform(
    parameters: Mapping[str, ParameterValue], named: Platform | None, captured: Platform | None
) -> Mapping[str, ParameterValue]:
    """Returns parameters that say `same` where they name the platform of the captured step.

    Args:
        parameters: The outer parameters.
        named: The platform that they name; None for that of the captured step.
        captured: What the step was captured on; None if it is not known.
    """
    if "platform" not in parameters or named is None or captured is None:
        return parameters
    if named.document != captured.document:
        return parameters
    return {**parameters, "platform": SAME_PLATFORM}


def optimizations(parameters: Mapping[str, ParameterValue]) -> tuple[str, ...]:
    """Returns the chosen optimizations and files of steps, in their order."""
    text = str(parameters.get("optimizations", NO_OPTIMIZATION))
    return () if text == NO_OPTIMIZATION else tuple(text.split(OPTIMIZATION_SEPARATOR))


def read_changes_of(
    machine: Sequence[Mapping[str, object]],
    texts: Sequence[str],
    files: Mapping[str, tuple[Change, ...]],
) -> list[Change]:
    """Returns changes ready to be applied.

    Args:
        machine: Changes of the machine, as a file has them.
        texts: `NAME=VALUE`, or names of files of steps.
        files: The steps of each such file.

    Raises:
        ConfigError: An optimization does not exist, or its options are wrong.
    """
    from dse.trace.whatif import parse_optimization, read_optimization

    steps: list[Change] = [read_optimization(options) for options in machine]
    for text in texts:
        steps += files[text] if is_step_file(text) else [parse_optimization(text)]
    return steps


def changes_document(
    name: str,
    description: str,
    machine: Sequence[Mapping[str, object]],
    texts: Sequence[str],
    files: Mapping[str, str],
) -> dict[str, object]:
    """Returns changes as the document that `dse trace whatif --steps` reads.

    Args:
        name: Its name.
        description: One line.
        machine: As for :func:`read_changes_of`.
        texts: As for :func:`read_changes_of`.
        files: The text of each file of steps.

    Raises:
        ConfigError: The text of a file is none of steps.
    """
    from dse.trace.whatif import optimization_options

    steps: list[object] = [dict(options) for options in machine]
    for text in texts:
        if not is_step_file(text):
            steps.append(optimization_options(text))
            continue
        document = parse_plain(files[text], file=text)
        kept = document.get("steps") if isinstance(document, dict) else None
        if not isinstance(kept, list):
            raise ConfigError(f"{text}: the study keeps no steps under this name")
        steps += kept
    return {"schema_version": 1, "name": name, "description": description, "steps": steps}


def change_title(parameters: Mapping[str, ParameterValue]) -> str:
    """Names the changes that parameters make: machine first, then optimizations."""
    platform = str(parameters.get("platform", SAME_PLATFORM))
    parts = [] if platform == SAME_PLATFORM else [platform]
    if "world_size" in parameters:
        parts.append(f"{parameters['world_size']} ranks")
    parts += [
        f"{kind} {name}" for kind in ("link", "network") if (name := named(parameters, kind))
    ]
    factor = float(parameters.get("network_factor", 1.0))
    if factor != 1.0:
        parts.append(f"{factor:g}× network")
    parts += [] if not optimizations(parameters) else [str(parameters["optimizations"])]
    return ", ".join(parts) or "as captured"
