"""A transformer in plain PyTorch, from the model's description.

Modules have the names of PyTorch's tutorial of tensor parallelism, which are those of the plans of
the exported module (``dse export --format fsdp``). Weights and batches depend on the seed only.
Rotary positions are left out, as in the program `pytorch`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dse.model import Activation, NormKind

if TYPE_CHECKING:
    from dse.model import TransformerModel

#: Standard deviation of initial weights.
_INITIAL = 0.02


def make_network(torch: Any, model: TransformerModel, seed: int, dtype: Any, device: str) -> Any:
    """Returns the network with its initial weights.

    Args:
        torch: The torch module.
        model: A dense decoder.
        seed: Seed of the weights.
        dtype: Type of the weights.
        device: Where they are made.
    """
    network = _network(torch, model)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if parameter.dim() > 1:
                parameter.normal_(0.0, _INITIAL, generator=generator)
            elif name.endswith("bias"):
                parameter.zero_()
    return network.to(device=device, dtype=dtype)


def make_batch(torch: Any, model: TransformerModel, seed: int, number: int, samples: int) -> Any:
    """Returns the tokens of a global batch and those that follow them.

    Args:
        torch: The torch module.
        model: Vocabulary and length of a sample.
        seed: Seed of all batches.
        number: Number of the batch.
        samples: Samples of the global batch.

    Returns:
        Shape `(samples, tokens + 1)`.
    """
    generator = torch.Generator().manual_seed((seed << 16) + number)
    shape = (samples, model.sequence_length + 1)
    return torch.randint(model.vocab, shape, generator=generator)


def loss_of(model: Any, batch: Any) -> Any:
    """Returns the mean cross entropy of the tokens that follow those of a batch.

    Args:
        model: A network.
        batch: Tokens; shape `(samples, tokens + 1)`.
    """
    from torch.nn.functional import cross_entropy

    logits = model(batch[:, :-1])
    return cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())


def _norm(nn: Any, model: TransformerModel) -> Any:
    if model.norm is NormKind.RMS:
        return nn.RMSNorm(model.hidden)
    return nn.LayerNorm(model.hidden, bias=model.biases)


def _activation(torch: Any, kind: Activation) -> Any:
    functional = torch.nn.functional
    return {
        Activation.GELU: functional.gelu,
        Activation.SILU: functional.silu,
        Activation.RELU2: lambda values: functional.relu(values).square(),
    }[kind]


def _linear(
    torch: Any, model: TransformerModel, inputs: int, outputs: int, *, bias: bool = False
) -> Any:
    return torch.nn.Linear(inputs, outputs, bias=model.biases or bias)


def _attention(torch: Any, model: TransformerModel) -> Any:
    functional = torch.nn.functional
    keys = model.kv_heads * model.head_dim

    class Attention(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.wq, self.wk, self.wv = (
                _linear(torch, model, model.hidden, columns, bias=model.qkv_bias)
                for columns in (model.attention_width, keys, keys)
            )
            self.wo = _linear(
                torch,
                model,
                model.attention_width,
                model.hidden,
                bias=model.attention_output_bias,
            )

        def forward(self, values: Any) -> Any:
            # As many heads as there are columns, of which tensor parallelism leaves a part.
            query, key, value = (
                one(values).unflatten(-1, (-1, model.head_dim)).transpose(1, 2)
                for one in (self.wq, self.wk, self.wv)
            )
            mixed = functional.scaled_dot_product_attention(
                query, key, value, is_causal=True, enable_gqa=model.kv_heads < model.heads
            )
            return self.wo(mixed.transpose(1, 2).flatten(2))

    return Attention()


def _feed_forward(torch: Any, model: TransformerModel) -> Any:
    activation = _activation(torch, model.activation)

    class FeedForward(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.w1 = _linear(torch, model, model.hidden, model.ffn_hidden)
            self.w3 = None
            if model.gated_ffn:
                self.w3 = _linear(torch, model, model.hidden, model.ffn_hidden)
            self.w2 = _linear(torch, model, model.ffn_hidden, model.hidden)

        def forward(self, values: Any) -> Any:
            inner = activation(self.w1(values))
            return self.w2(inner if self.w3 is None else inner * self.w3(values))

    return FeedForward()


def _layer(torch: Any, model: TransformerModel) -> Any:

    class Layer(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.attention_norm, self.ffn_norm = (_norm(torch.nn, model) for _ in range(2))
            self.attention = _attention(torch, model)
            self.feed_forward = _feed_forward(torch, model)

        def forward(self, values: Any) -> Any:
            values = values + self.attention(self.attention_norm(values))
            return values + self.feed_forward(self.ffn_norm(values))

    return Layer()


def _network(torch: Any, model: TransformerModel) -> Any:
    nn = torch.nn

    class Network(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.tok_embeddings = nn.Embedding(model.vocab, model.hidden)
            shape = (model.sequence_length, model.hidden)
            self.positions = nn.Parameter(torch.zeros(shape)) if model.learned_positions else None
            layers = {str(index): _layer(torch, model) for index in range(model.layers)}
            self.layers = nn.ModuleDict(layers)
            self.norm = _norm(nn, model)
            self.output = nn.Linear(model.hidden, model.vocab, bias=False)
            if model.tied_embeddings:
                self.output.weight = self.tok_embeddings.weight

        def forward(self, tokens: Any) -> Any:
            values = self.tok_embeddings(tokens)
            if self.positions is not None:
                values = values + self.positions
            for layer in self.layers.values():
                values = layer(values)
            return self.output(self.norm(values))

    return Network()
