"""Random operands."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dse._torch import load_torch
from dse.machine import Precision

if TYPE_CHECKING:
    import numpy as np


def random_values(
    shape: tuple[int, ...], precision: Precision, torch_device: str, rng: np.random.Generator
) -> Any:
    """Returns normal random values; zeros would let a GPU run at a higher clock.

    Args:
        shape: Shape of the tensor.
        precision: Type of the values.
        torch_device: ``cpu``, ``cuda`` or ``cuda:0``.
        rng: Source of the seed.
    """
    torch = load_torch()
    dtype = {Precision.FP16: torch.float16, Precision.BF16: torch.bfloat16}.get(
        precision, torch.float32
    )
    generator = torch.Generator(torch_device).manual_seed(int(rng.integers(2**31)))
    return torch.randn(shape, generator=generator, device=torch_device).to(dtype)
