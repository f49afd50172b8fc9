"""What is asked of torch, with stand-ins for GPUs and process groups."""

from __future__ import annotations

import builtins
from types import SimpleNamespace

import pytest

from dse._torch import load_torch
from dse.errors import ConfigError, OptionalDependencyError
from dse.trace.capture._profiler import RankInfo, activities, device_name, drain, rank_info


def torch_with(*, cuda=True, initialised=True, group=None, supported=("cpu", "cuda")):
    waited = []
    return SimpleNamespace(
        waited=waited,
        cuda=SimpleNamespace(
            is_available=lambda: cuda,
            is_initialized=lambda: initialised,
            synchronize=lambda: waited.append(1),
            current_device=lambda: 2,
            get_device_name=lambda index: f"GPU {index}",
        ),
        profiler=SimpleNamespace(
            ProfilerActivity=SimpleNamespace(CPU="cpu", CUDA="cuda"),
            supported_activities=lambda: set(supported),
        ),
        distributed=SimpleNamespace(
            is_available=lambda: True,
            is_initialized=lambda: group is not None,
            get_rank=lambda: group[0],
            get_world_size=lambda: group[1],
            get_backend=lambda: group[2],
        ),
    )


@pytest.mark.parametrize(
    ("cuda", "supported", "expected"),
    [
        (True, ("cpu", "cuda"), ["cpu", "cuda"]),
        (False, ("cpu", "cuda"), ["cpu"]),
        (True, ("cpu",), ["cpu"]),
    ],
)
def test_gpus_are_profiled_where_there_are_any(cuda, supported, expected):
    assert activities(torch_with(cuda=cuda, supported=supported)) == expected


@pytest.mark.parametrize(
    ("cuda", "initialised", "waits", "name"),
    [(True, True, 1, "GPU 2"), (True, False, 0, "cpu"), (False, False, 0, "cpu")],
)
def test_only_a_gpu_in_use_is_waited_for(cuda, initialised, waits, name):
    torch = torch_with(cuda=cuda, initialised=initialised)
    drain(torch)
    assert len(torch.waited) == waits
    assert device_name(torch) == name


def test_the_process_group_knows_the_rank():
    torch = torch_with(group=(3, 8, "nccl"))
    environment = {"RANK": "1", "WORLD_SIZE": "2"}
    assert rank_info(torch, None, environment) == RankInfo(3, 8, "nccl")
    assert rank_info(torch, 3, environment) == RankInfo(3, 8, "nccl")
    with pytest.raises(ConfigError, match=r"rank=1.*says 3"):
        rank_info(torch, 1, environment)


@pytest.mark.parametrize(
    ("given", "environment", "expected"),
    [
        (None, {"RANK": "1", "WORLD_SIZE": "4"}, RankInfo(1, 4)),
        (2, {"RANK": "1", "WORLD_SIZE": "4"}, RankInfo(2, 4)),
        (2, {}, RankInfo(2, 0)),
        (None, {"RANK": "1"}, RankInfo(1, 0)),
        (None, {"WORLD_SIZE": "4"}, RankInfo(0, 4)),
        (None, {}, RankInfo(0, 1)),
        (None, {"RANK": ""}, RankInfo(0, 1)),
    ],
)
def test_without_a_group_the_environment_does(given, environment, expected):
    assert rank_info(torch_with(), given, environment) == expected


def test_a_rank_that_is_no_number_is_refused():
    with pytest.raises(ConfigError, match="RANK=one"):
        rank_info(torch_with(), None, {"RANK": "one"})


def test_without_torch_the_way_to_it_is_told(monkeypatch):
    real = builtins.__import__

    def without_torch(name, *rest, **more):
        if name == "torch":
            raise ImportError(name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without_torch)
    with pytest.raises(OptionalDependencyError, match="pip install torch"):
        load_torch()
