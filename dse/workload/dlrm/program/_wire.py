"""Formats in which pooled embeddings and their gradients travel, and what converting them takes.

TorchRec and FBGEMM call it quantized communication (`QCommsConfig`): before a collective, kernels
write the values in the format of the wire; after it, kernels write them out as FP32 again. Both
passes stream through device memory. What each format takes is read from FBGEMM's
`quantize_comm.py` and `quantize_utils.py`:

* FP16 and BF16 are clamped, then cast: two kernels; the way back is one cast.
* FP8 (four bits of exponent) is one kernel each way and has no scales of rows.
* INT8 has a scale and an offset of four bytes each for every 32 values.
* MX4 has four bits a value and one byte of exponent for every 32.

A reduce-scatter adds values on the way, which only FP32, FP16 and BF16 allow: for FP8 and MX4
TorchRec falls back to FP16 forward and BF16 backward (`fbgemm_qcomm_codec.py`). Its INT8 has no
such rule; the same is assumed.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from dse.errors import ConfigError

#: Separates forward from backward, and the all-to-all from the reduce-scatter.
_BETWEEN_DIRECTIONS, _BEFORE_REDUCED = "/", "+reduce_scatter="


class WireFormat(StrEnum):
    """Format of one embedding value on the wire."""

    FP32 = "fp32"
    FP16 = "fp16"
    BF16 = "bf16"
    FP8 = "fp8"
    INT8 = "int8"
    MX4 = "mx4"

    @property
    def value_bytes(self) -> float:
        """Bytes of a value on the wire, with its part of scales."""
        return _VALUE_BYTES[self]

    @property
    def adds_up(self) -> bool:
        """Whether a reduction may add values in this format."""
        return self.value_bytes >= 2

    def encode_bytes(self, pooled: WireFormat) -> tuple[float, ...]:
        """Returns the bytes that each kernel of the way to the wire moves for a value.

        Args:
            pooled: Format that lookups write.
        """
        if self is pooled:
            return ()
        written = pooled.value_bytes + self.value_bytes
        return (2.0 * pooled.value_bytes, written) if self.value_bytes == 2 else (written,)

    def decode_bytes(self, pooled: WireFormat) -> tuple[float, ...]:
        """Returns the bytes that each kernel of the way back moves for a value.

        Args:
            pooled: Format that updates read.
        """
        return () if self is pooled else (self.value_bytes + pooled.value_bytes,)


_VALUE_BYTES = {
    WireFormat.FP32: 4.0,
    WireFormat.FP16: 2.0,
    WireFormat.BF16: 2.0,
    WireFormat.FP8: 1.0,
    WireFormat.INT8: 1.0 + 8 / 32,
    WireFormat.MX4: 0.5 + 1 / 32,
}


@dataclass(frozen=True, slots=True)
class WireFormats:
    """Formats of pooled embeddings, forward, and of their gradients, backward.

    Attributes:
        forward: Outputs in an all-to-all.
        backward: Gradients in an all-to-all.
        reduced_forward: Partial sums of rows in a reduce-scatter.
        reduced_backward: Gradients in an all-gather, the mirror of the reduce-scatter.
        codec: Whether kernels of their own convert between what lookups write and other formats.
            Without, lookups write what travels, and updates read it.
        pooled: Format that lookups write and updates read where there are such kernels.

    Raises:
        ConfigError: Partial sums cannot be added in their format.
    """

    forward: WireFormat = WireFormat.FP32
    backward: WireFormat = WireFormat.FP32
    reduced_forward: WireFormat = WireFormat.FP32
    reduced_backward: WireFormat = WireFormat.FP32
    codec: bool = False
    pooled: WireFormat = WireFormat.FP32

    def __post_init__(self) -> None:
        for one in (self.reduced_forward, self.reduced_backward):
            if not one.adds_up:
                known = ", ".join(known.value for known in WireFormat if known.adds_up)
                raise ConfigError(
                    f"{one.value} in the reduce-scatter of row-wise tables: TorchRec has no codec "
                    f"for it, because partial sums are added on the way; use one of {known}"
                )

    @staticmethod
    def of(
        forward: WireFormat,
        backward: WireFormat | None = None,
        *,
        reduced: tuple[WireFormat, WireFormat] | None = None,
        codec: bool = False,
    ) -> WireFormats:
        """Returns formats of both directions.

        Args:
            forward: Of outputs.
            backward: Of gradients; as forward by default.
            reduced: Of row-wise tables, forward and backward; by default as the others, where
                these do not add up FP16 forward and BF16 backward, like TorchRec.
            codec: See the class.

        Raises:
            ConfigError: Partial sums cannot be added in their format.
        """
        backward = forward if backward is None else backward
        there, back = reduced or _reduced(forward, backward)
        return WireFormats(forward, backward, there, back, codec)

    @staticmethod
    def parse(text: str, *, codec: bool = False) -> WireFormats:
        """Reads formats from text.

        Args:
            text: `fp16`; `fp16/bf16`, forward and backward; `fp8/bf16+reduce_scatter=fp16/bf16`.
            codec: See the class.

        Raises:
            ConfigError: There is no such format, or partial sums cannot be added in it.
        """
        whole, apart, rest = text.partition(_BEFORE_REDUCED)
        forward, backward = _directions(whole)
        return WireFormats.of(
            forward, backward, reduced=_directions(rest) if apart else None, codec=codec
        )

    @property
    def text(self) -> str:
        """The formats as :meth:`parse` reads them, in the shortest form."""
        found = _joined(self.forward, self.backward)
        if self.reduced != _reduced(self.forward, self.backward):
            found += _BEFORE_REDUCED + _joined(*self.reduced)
        return found

    @property
    def whole(self) -> tuple[WireFormat, WireFormat]:
        """Formats in all-to-alls, forward and backward."""
        return self.forward, self.backward

    @property
    def reduced(self) -> tuple[WireFormat, WireFormat]:
        """Formats in reduce-scatters and their mirrors, forward and backward."""
        return self.reduced_forward, self.reduced_backward

    def qcomms(self, *, sequences: bool = False) -> dict[str, tuple[str, str]]:
        """Returns formats forward and backward by the name of TorchRec's `CommOp`.

        Args:
            sequences: Whether some tables are not pooled.

        Returns:
            The operations that carry anything but FP32.
        """
        ops = {
            "POOLED_EMBEDDINGS_ALL_TO_ALL": self.whole,
            "POOLED_EMBEDDINGS_REDUCE_SCATTER": self.reduced,
        }
        if sequences:
            ops["SEQUENCE_EMBEDDINGS_ALL_TO_ALL"] = self.whole
        return {
            op: (forward.value, backward.value)
            for op, (forward, backward) in ops.items()
            if {forward, backward} != {WireFormat.FP32}
        }

    @property
    def mirrored(self) -> bool:
        """Whether the gradients' exchanges are those of the outputs, and nothing is converted."""
        alike = (
            self.forward.value_bytes == self.backward.value_bytes
            and self.reduced_forward.value_bytes == self.reduced_backward.value_bytes
        )
        return alike and not (self.codec and self.narrow)

    @property
    def narrow(self) -> bool:
        """Whether anything travels in another format than lookups write."""
        return {*self.whole, *self.reduced} != {self.pooled}

    @property
    def buffer_bytes(self) -> float:
        """Bytes that a rank keeps for each pooled value it holds, outputs and gradients together.

        Where formats are converted, both the value and its copy for the wire.
        """
        held = 0.0
        for one, other in zip(self.whole, self.reduced, strict=True):
            wire = max(one.value_bytes, other.value_bytes)
            converted = self.codec and not one is other is self.pooled
            held += wire + (self.pooled.value_bytes if converted else 0.0)
        return held

    def of_outputs(self, pooled: WireFormat) -> WireFormats:
        """Returns the formats for lookups that write another format than FP32.

        What would travel in a wider one travels as it is written.

        Args:
            pooled: The format that lookups write.
        """

        def sent(wire: WireFormat) -> WireFormat:
            return pooled if wire.value_bytes > pooled.value_bytes else wire

        return WireFormats(
            sent(self.forward),
            sent(self.backward),
            sent(self.reduced_forward),
            sent(self.reduced_backward),
            self.codec,
            pooled,
        )

    def narrowest(self, other: WireFormats) -> WireFormats:
        """Returns the formats of fewer bytes, each direction and collective for itself."""

        def fewer(one: WireFormat, two: WireFormat) -> WireFormat:
            return min(one, two, key=lambda wire: wire.value_bytes)

        return WireFormats(
            fewer(self.forward, other.forward),
            fewer(self.backward, other.backward),
            fewer(self.reduced_forward, other.reduced_forward),
            fewer(self.reduced_backward, other.reduced_backward),
            self.codec,
            self.pooled,
        )


def _reduced(forward: WireFormat, backward: WireFormat) -> tuple[WireFormat, WireFormat]:
    """Returns what row-wise tables use where they are not spoken of."""
    return (
        forward if forward.adds_up else WireFormat.FP16,
        backward if backward.adds_up else WireFormat.BF16,
    )


def _joined(forward: WireFormat, backward: WireFormat) -> str:
    both = (forward.value, backward.value)
    return forward.value if forward is backward else _BETWEEN_DIRECTIONS.join(both)


def _directions(text: str) -> tuple[WireFormat, WireFormat]:
    forward, _, backward = text.partition(_BETWEEN_DIRECTIONS)
    return _format(forward), _format(backward or forward)


def _format(text: str) -> WireFormat:
    try:
        return WireFormat(text.strip())
    except ValueError:
        known = ", ".join(one.value for one in WireFormat)
        raise ConfigError(
            f"format `{text}` on the wire: expected one of {known}, or two with `/` between them "
            "for outputs and gradients"
        ) from None
