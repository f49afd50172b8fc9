"""Dense part of a recommendation model as a torch module.

It has the layers of :func:`dse.model.dense_operators`: bottom MLP, interaction (pairwise dot
products, low-rank cross layers of DCNv2, or concatenation with average pooling) and top MLP, with
ReLU after every layer except the last.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

from dse.model import InteractionKind, interaction_width

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dse.model import DlrmModel


def make_network(torch: Any, model: DlrmModel, seed: int, dtype: Any, device: str) -> Any:
    """Returns the dense part; its weights depend on the seed only.

    Its `forward` takes dense features of shape `(samples, features)` and a function that returns
    the pooled vectors, each of shape `(samples, columns)`, in the order of tables, features and
    columns; the function is called after the bottom MLP. It returns logits of shape
    `(samples, 1)`.
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
            return self.top(self.interaction(hidden, embeddings()))

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = Network()
    return network.to(device=device, dtype=dtype)


def _interaction(torch: Any, model: DlrmModel, width: int, device: str) -> Any:
    nn, kind = torch.nn, model.interaction.kind
    vectors = sum(table.feature_count for table in model.tables) + 1

    class Dot(nn.Module):  # type: ignore[name-defined, misc]
        """Dot products of all pairs of vectors, the lower triangle of `x xᵀ`."""

        def __init__(self) -> None:
            super().__init__()
            row, column = torch.tril_indices(vectors, vectors, offset=-1, device=device)
            self.pairs = row * vectors + column

        def forward(self, hidden: Any, pooled: list[Any]) -> Any:
            samples, dim = hidden.shape
            values = torch.cat([hidden, *pooled], dim=1).view(samples, vectors, dim)
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
        InteractionKind.DCNV2_LOW_RANK: Cross,
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
