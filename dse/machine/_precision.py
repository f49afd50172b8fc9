"""Arithmetic of devices: precisions and their peak rates."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Precision(StrEnum):
    """Arithmetic of the dense part: the rate of matrix multiplications and the bytes of values.

    ``fp16`` and ``bf16`` mean mixed precision: activations and gradients in two bytes, master
    weights in four. ``tf32`` keeps four-byte values and uses tensor cores. The others are mixed
    precision with ``bf16`` in which operands of products are cast to fewer bits, each block of
    values with a scale factor: ``fp8`` has one factor a tensor (E4M3, and E5M2 for gradients),
    ``fp8_block`` one of four bytes for 128 values, ``mxfp8`` one of one byte for 32 values, and
    ``nvfp4`` one of one byte for 16 values of half a byte.
    """

    FP32 = "fp32"
    TF32 = "tf32"
    FP16 = "fp16"
    BF16 = "bf16"
    FP8 = "fp8"
    FP8_BLOCK = "fp8_block"
    MXFP8 = "mxfp8"
    NVFP4 = "nvfp4"

    @property
    def value_bytes(self) -> int:
        """Bytes of one activation or gradient value outside of products."""
        return 4 if self in (Precision.FP32, Precision.TF32) else 2

    @property
    def is_low(self) -> bool:
        """Whether operands of products have fewer bits than other values."""
        return self in _SCALED_BYTES

    @property
    def operand_bytes(self) -> float:
        """Bytes of one operand value of a product, with its share of a scale factor."""
        return _SCALED_BYTES.get(self, float(self.value_bytes))

    @property
    def outside_products(self) -> Precision:
        """Precision of everything but products: ``bf16`` if operands have fewer bits."""
        return Precision.BF16 if self.is_low else self


#: Bytes of an operand value of low precision and of its share of a scale factor.
_SCALED_BYTES = {
    Precision.FP8: 1.0,
    Precision.FP8_BLOCK: 1.0 + 4 / 128,
    Precision.MXFP8: 1.0 + 1 / 32,
    Precision.NVFP4: 0.5 + 1 / 16,
}


@dataclass(frozen=True, slots=True)
class PeakRates:
    """Dense peak arithmetic rate per precision, without structured sparsity, in FLOP/s.

    A precision that the device lacks falls back to the next wider one it has, as the libraries do
    (those below two bytes to ``bf16``, others to ``fp32``); :meth:`has` tells.
    """

    fp32_flops_per_s: float
    tf32_flops_per_s: float | None = None
    fp16_flops_per_s: float | None = None
    bf16_flops_per_s: float | None = None
    fp8_flops_per_s: float | None = None
    mxfp8_flops_per_s: float | None = None
    nvfp4_flops_per_s: float | None = None

    def of(self, precision: Precision) -> float:
        """Returns the peak rate in FLOP/s used for `precision` on this device."""
        own = self._own(precision)
        if own is None and precision.is_low:
            own = self.bf16_flops_per_s
        return own if own is not None else self.fp32_flops_per_s

    def has(self, precision: Precision) -> bool:
        """Returns whether the device has arithmetic of this precision."""
        return self._own(precision) is not None

    def _own(self, precision: Precision) -> float | None:
        return {
            Precision.FP32: self.fp32_flops_per_s,
            Precision.TF32: self.tf32_flops_per_s,
            Precision.FP16: self.fp16_flops_per_s,
            Precision.BF16: self.bf16_flops_per_s,
            Precision.FP8: self.fp8_flops_per_s,
            # The scales of large blocks are applied outside the tensor cores.
            Precision.FP8_BLOCK: self.fp8_flops_per_s,
            Precision.MXFP8: self.mxfp8_flops_per_s,
            Precision.NVFP4: self.nvfp4_flops_per_s,
        }[precision]
