"""Built-in platforms by the name that a driver gives their device."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from dse.errors import ConfigError
from dse.machine.platforms._load import list_platforms, load_platform

if TYPE_CHECKING:
    from dse.machine.platforms._platform import Platform

#: Parts of device names that do not distinguish devices.
_NOISE = frozenset({"nvidia", "tesla", "amd", "gpu", "geforce", "graphics", "gb", "hbm3", "hbm2"})
_WORD = re.compile(r"[a-z]+\d+[a-z]*|[a-z]+|\d+")


def nearest_platform(device_name: str, world_size: int = 1) -> Platform | None:
    """Returns the built-in platform whose GPU matches a name best; None if no model matches.

    The model (`v100`) has to agree; names of PCIe cards say so. Of several platforms the one with
    the fewest other parts in its name, then the smallest node that holds the ranks, then the first
    by name is taken.

    Args:
        device_name: As `torch.cuda.get_device_name()` or a trace gives it.
        world_size: Number of ranks.
    """
    words = _words(device_name)
    found = []
    for name in list_platforms():
        platform = load_platform(name)
        other = _words(platform.device.name)
        if platform.device.kind != "gpu" or not _model(other) <= words:
            continue
        fits = platform.devices_per_domain(world_size) >= world_size
        key = (
            ("pcie" in words) != ("pcie" in other),
            -len(words & other),
            len(other - words),
            not fits,
            platform.devices_per_node,
            name,
        )
        found.append((key, platform))
    return min(found, key=lambda pair: pair[0])[1] if found else None


def platform_of_device(device_name: str, world_size: int = 1) -> Platform:
    """Returns the built-in platform that has a GPU, on a card for PCIe if the GPU is on one.

    Args:
        device_name: As `torch.cuda.get_device_name()` gives it.
        world_size: Number of ranks.

    Raises:
        ConfigError: No built-in platform has it.
    """
    found = nearest_platform(device_name, world_size)
    if found is None or ("pcie" in _words(device_name)) != ("pcie" in _words(found.device.name)):
        raise ConfigError(
            f"no built-in platform has a `{device_name}`; name a platform, or measure this "
            "machine with `dse calibrate --device cuda`"
        )
    return found


def may_be_same_device(device_name: str, other_name: str) -> bool:
    """Returns whether two names may be of one device: same model, same size of memory if known."""
    mine, theirs = _words(device_name), _words(other_name)
    sizes = [{word for word in words if word.isdecimal()} for words in (mine, theirs)]
    if not (_model(theirs) and _model(theirs) <= mine):
        return mine == theirs
    return not all(sizes) or bool(sizes[0] & sizes[1])


def _words(name: str) -> frozenset[str]:
    # `32GB` and `32 GB` are one word in one name and two in another.
    plain = re.sub(r"(\d+)\s*gi?b\b", r" \1 ", name.lower())
    return frozenset(_WORD.findall(plain)) - _NOISE


def _model(words: frozenset[str]) -> frozenset[str]:
    """The words that tell a model: those with a number, or all letters of a name without one."""
    numbered = {word for word in words if re.fullmatch(r"[a-z]+\d+[a-z]*", word)}
    letters = {word for word in words if word.isalpha()}
    return frozenset({word for word in numbered if not word.startswith("sxm")} or letters)
