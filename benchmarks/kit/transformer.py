"""A transformer in plain PyTorch, from the model's description: what is timed beside predictions.

Master weights in FP32 under autocast to BF16, PyTorch's own FlashAttention-2 and loss, fused Adam.
Learned positions, or none: rotary embeddings are left out, as in the model's description.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dse.model import Activation, NormKind

if TYPE_CHECKING:
    from collections.abc import Callable

    from dse.model import TransformerModel


def transformer_step(
    model: TransformerModel, batch: int, device: str, *, graphed: bool
) -> Callable[[], None]:
    """Returns a training step of the model on random tokens.

    Args:
        model: A dense decoder.
        batch: Sequences of a step.
        device: ``cpu``, in FP32, or ``cuda``, in BF16.
        graphed: Whether the optimizer may be captured into a CUDA graph.
    """
    import torch

    torch.manual_seed(0)
    network = _network(torch, model).to(device)
    on_gpu = device == "cuda"
    optimizer = torch.optim.Adam(network.parameters(), fused=True, capturable=graphed and on_gpu)
    shape = (batch, model.sequence_length)
    tokens, labels = (torch.randint(model.vocab, shape, device=device) for _ in range(2))

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device, torch.bfloat16, enabled=on_gpu, cache_enabled=not graphed):
            logits = network(tokens)
            loss = torch.nn.functional.cross_entropy(logits.view(-1, model.vocab), labels.view(-1))
        loss.backward()
        optimizer.step()

    return step


def _network(torch: Any, model: TransformerModel) -> Any:
    nn = torch.nn
    block = _block_class(torch, model)

    class Network(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.tokens = nn.Embedding(model.vocab, model.hidden)
            shape = (model.sequence_length, model.hidden)
            self.positions = nn.Parameter(torch.zeros(shape)) if model.learned_positions else None
            self.blocks = nn.ModuleList(block() for _ in range(model.layers))
            self.norm = _norm(nn, model)
            self.head = nn.Linear(model.hidden, model.vocab, bias=False)
            if model.tied_embeddings:
                self.head.weight = self.tokens.weight

        def forward(self, tokens: Any) -> Any:
            values = self.tokens(tokens)
            if self.positions is not None:
                values = values + self.positions
            for one in self.blocks:
                values = one(values)
            return self.head(self.norm(values))

    return Network()


def _norm(nn: Any, model: TransformerModel) -> Any:
    if model.norm is NormKind.RMS:
        return nn.RMSNorm(model.hidden)
    return nn.LayerNorm(model.hidden, bias=model.biases)


def _block_class(torch: Any, model: TransformerModel) -> Any:
    nn = torch.nn
    functional = nn.functional
    activation = {
        Activation.GELU: functional.gelu,
        Activation.SILU: functional.silu,
        Activation.RELU2: lambda values: functional.relu(values).square(),
    }[model.activation]

    def linear(inputs: int, outputs: int, *, bias: bool = False) -> Any:
        return nn.Linear(inputs, outputs, bias=model.biases or bias)

    class Block(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.before, self.between = _norm(nn, model), _norm(nn, model)
            self.qkv = linear(model.hidden, model.qkv_width, bias=model.qkv_bias)
            self.out = linear(
                model.attention_width, model.hidden, bias=model.attention_output_bias
            )
            self.up = linear(model.hidden, model.ffn_hidden)
            self.gate = linear(model.hidden, model.ffn_hidden) if model.gated_ffn else None
            self.down = linear(model.ffn_hidden, model.hidden)

        def forward(self, values: Any) -> Any:
            values = values + self.out(self.attention(self.qkv(self.before(values))))
            inputs = self.between(values)
            if self.gate is None:
                return values + self.down(activation(self.up(inputs)))
            return values + self.down(activation(self.gate(inputs)) * self.up(inputs))

        def attention(self, projected: Any) -> Any:
            keys_width = model.kv_heads * model.head_dim
            parts = projected.split([model.attention_width, keys_width, keys_width], dim=-1)
            query, key, value = (
                part.unflatten(-1, (-1, model.head_dim)).transpose(1, 2) for part in parts
            )
            with _flash(torch, query):
                mixed = functional.scaled_dot_product_attention(
                    query, key, value, is_causal=True, enable_gqa=model.kv_heads < model.heads
                )
            return mixed.transpose(1, 2).flatten(-2)

    return Block


def _flash(torch: Any, query: Any) -> Any:
    """FlashAttention-2 on GPUs: without a choice torch takes what it thinks is fastest."""
    kernels = torch.nn.attention
    if query.is_cuda:
        return kernels.sdpa_kernel(kernels.SDPBackend.FLASH_ATTENTION)
    return kernels.sdpa_kernel(kernels.SDPBackend.MATH)
