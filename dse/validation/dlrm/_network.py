"""Dense part of a recommendation model as a torch module.

It has the layers of :func:`dse.model.dense_operators`: bottom MLP, interaction (pairwise dot
products, cross layers of DCNv2, a factorization machine beside the top MLP, or concatenation with
average pooling) and top MLP, with ReLU after every layer except the last.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

from dse.model import InteractionKind, interaction_inputs, interaction_width

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dse.model import DlrmModel


def make_network(torch: Any, model: DlrmModel, seed: int, dtype: Any, device: str) -> Any:
    """Returns the dense part; its weights depend on the seed only.

    Its `forward` takes dense features of shape `(samples, features)` and a function that returns
    the pooled vectors, each of shape `(samples, columns)`, in the order of tables, features and
    columns; the function is called after the bottom MLP. It returns logits of shape
    `(samples, outputs)`.
    """
    nn = torch.nn

    def mlp(widths: Sequence[int], *, last_is_linear: bool) -> Any:
        layers = []
        for inputs, outputs in pairwise(widths):
            layers += [nn.Linear(inputs, outputs), nn.ReLU()]
        return nn.Sequential(*(layers[:-1] if last_is_linear else layers))

    class Network(nn.Module):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            bottom = [model.dense_features, *model.bottom_mlp] if model.bottom_mlp else []
            width = interaction_width(model)
            self.bottom = mlp(bottom, last_is_linear=False)
            self.interaction = _interaction(torch, model, width, device)
            self.top = mlp([width, *model.top_mlp], last_is_linear=True)

        def forward(self, dense: Any, embeddings: Callable[[], list[Any]]) -> Any:
            hidden = self.bottom(dense)
            if model.interaction.kind is InteractionKind.FM:
                deep, score = self.interaction(hidden, embeddings())
                return self.top(deep) + score
            return self.top(self.interaction(hidden, embeddings()))

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = Network()
    return network.to(device=device, dtype=dtype)


def _interaction(torch: Any, model: DlrmModel, width: int, device: str) -> Any:
    nn, kind = torch.nn, model.interaction.kind
    inputs = interaction_inputs(model)
    vectors = len(inputs) + bool(model.bottom_mlp)

    class Dot(nn.Module):  # type: ignore[name-defined, misc]
        """Dot products of all pairs of vectors, the lower triangle of `x xᵀ`."""

        def __init__(self) -> None:
            super().__init__()
            row, column = torch.tril_indices(vectors, vectors, offset=-1, device=device)
            self.pairs = row * vectors + column

        def forward(self, hidden: Any, pooled: list[Any]) -> Any:
            samples = len(hidden)
            values = torch.cat([hidden, *pooled], dim=1).view(samples, vectors, -1)
            products = torch.bmm(values, values.transpose(1, 2)).view(samples, -1)
            return torch.cat((hidden, products.index_select(1, self.pairs)), dim=1)

    class Concat(nn.Module):  # type: ignore[name-defined, misc]
        """Pooled vectors side by side, averaged over strides, and the dense features."""

        def forward(self, hidden: Any, pooled: list[Any]) -> Any:
            stride = model.interaction.stride
            if stride == 1 or not pooled:
                return torch.cat([*pooled, hidden], dim=1)
            embedded = torch.cat(pooled, dim=1)[:, None]
            averaged = nn.functional.avg_pool1d(embedded, stride, ceil_mode=True)[:, 0]
            return torch.cat((averaged, hidden), dim=1)

    class FactorizationMachine(nn.Module):  # type: ignore[name-defined, misc]
        """All vectors side by side, and ½ ((Σ v)² − Σ v²) with the weights of width 1 added."""

        def forward(self, hidden: Any, pooled: list[Any]) -> Any:
            samples = len(hidden)
            tables = torch.cat(pooled, dim=1).split(inputs, dim=1)
            wide = [table for table, width in zip(tables, inputs, strict=True) if width > 1]
            first = [table for table, width in zip(tables, inputs, strict=True) if width == 1]
            embedded = torch.cat([*wide, hidden], dim=1)
            together = embedded if model.bottom_mlp else torch.cat(wide, dim=1)
            values = together.view(samples, len(wide) + bool(model.bottom_mlp), -1)
            pairs = 0.5 * (values.sum(dim=1) ** 2 - (values**2).sum(dim=1))
            return embedded, torch.cat([pairs, *first], dim=1).sum(dim=1, keepdim=True)

    class FullCross(nn.Module):  # type: ignore[name-defined, misc]
        """Cross layers with full matrices, x0 ⊙ (W x + b) + x."""

        def __init__(self) -> None:
            super().__init__()
            layers = model.interaction.layers
            self.w = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))

        def forward(self, hidden: Any, pooled: list[Any]) -> Any:
            start = torch.cat([*pooled, hidden], dim=1)
            value = start
            for w in self.w:
                value = torch.addcmul(value, start, w(value))
            return value

    class Cross(nn.Module):  # type: ignore[name-defined, misc]
        """Low-rank cross layers, x0 ⊙ (W (V x) + b) + x (Wang et al., DCN V2, WWW 2021)."""

        def __init__(self) -> None:
            super().__init__()
            rank, layers = model.interaction.low_rank, model.interaction.layers
            self.v = nn.ModuleList(nn.Linear(width, rank, bias=False) for _ in range(layers))
            self.w = nn.ModuleList(nn.Linear(rank, width) for _ in range(layers))

        def forward(self, hidden: Any, pooled: list[Any]) -> Any:
            start = torch.cat([*pooled, hidden], dim=1)
            value = start
            for v, w in zip(self.v, self.w, strict=True):
                value = torch.addcmul(value, start, w(v(value)))
            return value

    classes = {
        InteractionKind.DOT: Dot,
        InteractionKind.CONCAT: Concat,
        InteractionKind.DCNV2: FullCross,
        InteractionKind.DCNV2_LOW_RANK: Cross,
        InteractionKind.FM: FactorizationMachine,
    }
    return classes[kind]()


def make_optimizer(torch: Any, model: DlrmModel, network: Any, rate: float) -> Any:
    """Returns the optimizer of the dense part: the fused form where there is one.

    Row-wise Adagrad means Adagrad here.
    """
    kinds = (torch.optim.SGD, torch.optim.Adagrad, torch.optim.Adam)
    kind = kinds[model.dense_optimizer.state_values_per_parameter]
    try:
        return kind(network.parameters(), lr=rate, fused=True)
    except (RuntimeError, ValueError):
        return kind(network.parameters(), lr=rate, foreach=True)
