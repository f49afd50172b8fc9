"""The one place where torch is imported, and what is asked of it."""

from __future__ import annotations

from dataclasses import dataclass
import os
from typing import TYPE_CHECKING, Any

from dse.errors import ConfigError, OptionalDependencyError

if TYPE_CHECKING:
    from collections.abc import Mapping


def load_torch() -> Any:
    """Returns the torch module.

    Raises:
        OptionalDependencyError: torch is not installed.
    """
    try:
        import torch
    except ImportError as error:
        raise OptionalDependencyError(
            "capturing needs torch, which is not installed here: pip install torch"
        ) from error
    return torch


@dataclass(frozen=True, slots=True)
class RankInfo:
    """Which process of a job this is.

    Attributes:
        rank: Global rank.
        world_size: Ranks of the job; 0 if not known.
        backend: Backend of the default process group; empty without one.
    """

    rank: int
    world_size: int
    backend: str = ""


def rank_info(
    torch: Any, given: int | None = None, environment: Mapping[str, str] | None = None
) -> RankInfo:
    """Returns rank and world size: of the process group, else of the environment, else 0 of 1.

    Args:
        torch: The torch module.
        given: Rank that the user gave; it must agree with the process group.
        environment: Variables of the process; those of this one by default.

    Raises:
        ConfigError: The given rank is not that of the process group, or a variable is no number.
    """
    dist = torch.distributed
    if dist.is_available() and dist.is_initialized():
        found = RankInfo(dist.get_rank(), dist.get_world_size(), str(dist.get_backend()))
        if given is not None and given != found.rank:
            raise ConfigError(
                f"rank={given}, but torch.distributed says {found.rank}; leave `rank` out"
            )
        return found
    variables = os.environ if environment is None else environment
    alone = given is None and not variables.get("RANK")
    rank = _number(variables, "RANK", 0) if given is None else given
    return RankInfo(rank, _number(variables, "WORLD_SIZE", 1 if alone else 0))


def _number(variables: Mapping[str, str], name: str, default: int) -> int:
    text = variables.get(name, "")
    if not text:
        return default
    if not text.isdecimal():
        raise ConfigError(f"{name}={text}: expected a number from 0; unset it or give `rank`")
    return int(text)


def activities(torch: Any) -> list[Any]:
    """Returns what is profiled: the host, and the GPUs where there are any."""
    kinds = torch.profiler.ProfilerActivity
    found = [kinds.CPU]
    if torch.cuda.is_available() and kinds.CUDA in torch.profiler.supported_activities():
        found.append(kinds.CUDA)
    return found


def drain(torch: Any) -> None:
    """Waits until the GPU of this process has done all its work, if the process uses one."""
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.synchronize()


def device_name(torch: Any) -> str:
    """Returns the name of the GPU that this process uses, or `cpu`."""
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        return str(torch.cuda.get_device_name(torch.cuda.current_device()))
    return "cpu"
