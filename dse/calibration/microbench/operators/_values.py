"""Random operands."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dse._torch import load_torch
from dse.machine import Precision

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True, slots=True)
class Operands:
    """What the operands of a benchmark are made of.

    Attributes:
        precision: Type of the values.
        device: ``cpu``, ``cuda`` or ``cuda:0``.
        rng: Source of seeds, and of indices.
    """

    precision: Precision
    device: str
    rng: np.random.Generator

    @property
    def on_gpu(self) -> bool:
        """Whether they are in the memory of a GPU."""
        return self.device.startswith("cuda")

    def random(self, shape: tuple[int, ...]) -> Any:
        """Returns normal random values; zeros would let a GPU run at a higher clock."""
        torch = load_torch()
        dtype = {Precision.FP16: torch.float16, Precision.BF16: torch.bfloat16}.get(
            self.precision, torch.float32
        )
        generator = torch.Generator(self.device).manual_seed(int(self.rng.integers(2**31)))
        return torch.randn(shape, generator=generator, device=self.device).to(dtype)
