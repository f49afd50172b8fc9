"""YAML of a transformer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, ValidationError, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError

from dse.config import Count, Document
from dse.machine import Precision
from dse.model._common import Name, Optimizer, Width
from dse.model.transformer._model import (
    Activation,
    AttentionKind,
    NormKind,
    TransformerFamily,
    TransformerModel,
)

if TYPE_CHECKING:
    from collections.abc import Iterator


Layers = Annotated[Count, Field(le=10_000)]


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
        if self.optimizer is Optimizer.ROWWISE_ADAGRAD:
            yield _problem(
                "optimizer", "`rowwise_adagrad` is for embedding tables; use `adagrad` or `adam`"
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
            ffn_hidden=self.ffn_hidden or 4 * self.hidden,
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
        )


def _problem(field: str, message: str) -> InitErrorDetails:
    return InitErrorDetails(
        type=PydanticCustomError("transformer", "{message}", {"message": message}),
        loc=(field,),
        input=None,
    )
