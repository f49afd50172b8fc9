"""YAML of a transformer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, ValidationError, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError

from dse.config import Count, Document, StrictModel
from dse.machine import Precision
from dse.model._common import Name, Optimizer, Width
from dse.model.transformer._model import (
    Activation,
    AttentionKind,
    MixtureOfExperts,
    NormKind,
    TransformerFamily,
    TransformerModel,
)

if TYPE_CHECKING:
    from collections.abc import Iterator


Layers = Annotated[Count, Field(le=10_000)]


class ExpertsBlock(StrictModel):
    """A mixture of experts in the place of every feed-forward block."""

    count: Width
    active: Width
    ffn_hidden: Width
    shared_ffn_hidden: Width | None = None
    imbalance: Annotated[float, Field(ge=1, le=1000)] = 1.0
    skew: Annotated[float, Field(ge=0, le=4)] = 0.0
    capacity_factor: Annotated[float, Field(ge=1, le=1000)] | None = None
    pads_to_capacity: bool = False
    biases: bool = False
    limited: bool = False

    @model_validator(mode="after")
    def _check(self) -> ExpertsBlock:
        if self.pads_to_capacity and self.capacity_factor is None:
            raise PydanticCustomError(
                "experts", "`pads_to_capacity` needs a `capacity_factor` to fill experts up to"
            )
        if self.active > self.count:
            raise PydanticCustomError(
                "experts", f"expected at most {self.count} active experts, found {self.active}"
            )
        return self


class TransformerDocument(Document):
    """A transformer and its training recipe."""

    kind: Literal["transformer"]
    name: Name
    description: str = ""
    aliases: list[Name] = []
    source: str
    family: TransformerFamily
    layers: Layers
    hidden: Width
    heads: Width
    kv_heads: Width | None = None
    head_dim: Width | None = None
    ffn_hidden: Width | None = None
    gated_ffn: bool = False
    experts: ExpertsBlock | None = None
    vocab: Width
    sequence_length: Width
    attention: AttentionKind = AttentionKind.FLASH
    tied_embeddings: bool = True
    norm: NormKind = NormKind.LAYER
    activation: Activation | None = None
    learned_positions: bool = True
    biases: bool = True
    dropout: bool = False
    precision: Precision = Precision.BF16
    optimizer: Optimizer = Optimizer.ADAM
    global_batch_size: Count

    @model_validator(mode="after")
    def _check(self) -> TransformerDocument:
        problems = list(self._problems())
        if problems:
            raise ValidationError.from_exception_data(type(self).__name__, problems)
        return self

    def _problems(self) -> Iterator[InitErrorDetails]:
        if self.head_dim is None and self.hidden % self.heads:
            yield _problem(
                "heads",
                f"expected a divisor of the hidden width {self.hidden}, found {self.heads}; "
                "for heads of another width give `head_dim`",
            )
        kv_heads = self.kv_heads or self.heads
        if self.heads % kv_heads:
            yield _problem(
                "kv_heads", f"expected a divisor of the {self.heads} heads, found {kv_heads}"
            )
        if self.experts is not None and self.ffn_hidden is not None:
            yield _problem(
                "ffn_hidden",
                "belongs to dense models; experts have `experts.ffn_hidden`, and the one that all "
                "tokens visit `experts.shared_ffn_hidden`",
            )
        if self.optimizer is Optimizer.ROWWISE_ADAGRAD or self.optimizer.of_tables_only:
            yield _problem(
                "optimizer",
                f"`{self.optimizer.value}` is for embedding tables; use `adagrad` or `adam`",
            )

    def to_model(self) -> TransformerModel:
        """Returns the model as plain values."""
        return TransformerModel(
            name=self.name,
            description=self.description,
            source=self.source,
            family=self.family,
            layers=self.layers,
            hidden=self.hidden,
            heads=self.heads,
            kv_heads=self.kv_heads or self.heads,
            head_dim=self.head_dim or self.hidden // self.heads,
            ffn_hidden=self._ffn_hidden(),
            gated_ffn=self.gated_ffn,
            vocab=self.vocab,
            sequence_length=self.sequence_length,
            attention=self.attention,
            tied_embeddings=self.tied_embeddings,
            norm=self.norm,
            activation=self.activation or (Activation.SILU if self.gated_ffn else Activation.GELU),
            learned_positions=self.learned_positions,
            biases=self.biases,
            dropout=self.dropout,
            precision=self.precision,
            optimizer=self.optimizer,
            global_batch_size=self.global_batch_size,
            experts=None if self.experts is None else self._experts(self.experts),
        )

    def _ffn_hidden(self) -> int:
        if self.experts is not None:
            return self.experts.shared_ffn_hidden or 0
        return self.ffn_hidden or 4 * self.hidden

    @staticmethod
    def _experts(block: ExpertsBlock) -> MixtureOfExperts:
        return MixtureOfExperts(
            block.count,
            block.active,
            block.ffn_hidden,
            block.shared_ffn_hidden or 0,
            block.imbalance,
            block.skew,
            block.capacity_factor,
            block.pads_to_capacity,
            block.biases,
            block.limited,
        )


def _problem(field: str, message: str) -> InitErrorDetails:
    return InitErrorDetails(
        type=PydanticCustomError("transformer", "{message}", {"message": message}),
        loc=(field,),
        input=None,
    )
