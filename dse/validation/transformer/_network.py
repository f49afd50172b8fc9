"""A transformer in plain PyTorch, from the model's description.

Modules have the names of PyTorch's tutorial of tensor parallelism, which are those of the plans of
the exported module (``dse export --format fsdp``). Weights and batches depend on the seed only.
Rotary positions are left out, as in the performance model.
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
    network = _network_class(torch, model)()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in network.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0.0, _INITIAL, generator=generator)
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


def _network_class(torch: Any, model: TransformerModel) -> Any:
    nn, functional = torch.nn, torch.nn.functional
    activation = _activation(torch, model.activation)

    def linear(inputs: int, outputs: int) -> Any:
        return nn.Linear(inputs, outputs, bias=model.biases)

    class Attention(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            keys = model.kv_heads * model.head_dim
            self.wq = linear(model.hidden, model.attention_width)
            self.wk, self.wv = linear(model.hidden, keys), linear(model.hidden, keys)
            self.wo = linear(model.attention_width, model.hidden)

        def forward(self, values: Any) -> Any:
            # The number of heads is that of the columns, of which tensor parallelism leaves a part.
            query, key, value = (
                one(values).unflatten(-1, (-1, model.head_dim)).transpose(1, 2)
                for one in (self.wq, self.wk, self.wv)
            )
            mixed = functional.scaled_dot_product_attention(
                query, key, value, is_causal=True, enable_gqa=model.kv_heads < model.heads
            )
            return self.wo(mixed.transpose(1, 2).flatten(2))

    class FeedForward(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.w1 = linear(model.hidden, model.ffn_hidden)
            self.w3 = linear(model.hidden, model.ffn_hidden) if model.gated_ffn else None
            self.w2 = linear(model.ffn_hidden, model.hidden)

        def forward(self, values: Any) -> Any:
            inner = activation(self.w1(values))
            if self.w3 is not None:
                inner = inner * self.w3(values)
            return self.w2(inner)

    class Layer(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.attention_norm, self.ffn_norm = _norm(nn, model), _norm(nn, model)
            self.attention, self.feed_forward = Attention(), FeedForward()

        def forward(self, values: Any) -> Any:
            values = values + self.attention(self.attention_norm(values))
            return values + self.feed_forward(self.ffn_norm(values))

    class Network(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.tok_embeddings = nn.Embedding(model.vocab, model.hidden)
            shape = (model.sequence_length, model.hidden)
            self.positions = nn.Parameter(torch.zeros(shape)) if model.learned_positions else None
            self.layers = nn.ModuleDict({str(index): Layer() for index in range(model.layers)})
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

    return Network
