"""Training jobs whose captures are replayed: an MLP, a transformer and a DLRM."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

#: Sizes at which operators, not Python, take the time: 20 to 200 ms a step on one core.
MLP_BATCH, MLP_WIDTH = 512, 768
TOKENS, TOKEN_WIDTH, HEADS, LAYERS, SEQUENCES = 64, 192, 4, 2, 16
TABLES, ROWS, DIM, POOLING, DLRM_BATCH, DENSE = 8, 50_000, 64, 20, 512, 13


def mlp(device: str = "cpu") -> Callable[[], None]:
    """Returns a step of an MLP under Adam."""
    import torch
    from torch import nn

    sizes = [MLP_WIDTH, MLP_WIDTH, MLP_WIDTH, MLP_WIDTH]
    layers: list[nn.Module] = []
    for before, after in pairwise(sizes):
        layers += [nn.Linear(before, after), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Linear(MLP_WIDTH, 16)).to(device)
    inputs = torch.randn(MLP_BATCH, MLP_WIDTH, device=device)
    labels = torch.randn(MLP_BATCH, 16, device=device)
    return _stepper(model, lambda: nn.functional.mse_loss(model(inputs), labels))


def transformer(device: str = "cpu") -> Callable[[], None]:
    """Returns a step of a transformer that predicts tokens, under Adam."""
    import torch
    from torch import nn

    vocabulary = 2000
    layer = nn.TransformerEncoderLayer(
        TOKEN_WIDTH, HEADS, 4 * TOKEN_WIDTH, dropout=0.1, batch_first=True, norm_first=True
    )
    model = nn.Sequential(
        nn.Embedding(vocabulary, TOKEN_WIDTH),
        nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False),
        nn.Linear(TOKEN_WIDTH, vocabulary),
    ).to(device)
    tokens = torch.randint(vocabulary, (SEQUENCES, TOKENS), device=device)
    labels = torch.randint(vocabulary, (SEQUENCES * TOKENS,), device=device)
    return _stepper(
        model,
        lambda: nn.functional.cross_entropy(model(tokens).view(-1, vocabulary), labels),
    )


def dlrm(device: str = "cpu") -> Callable[[], None]:
    """Returns a step of a DLRM: pooled lookups, dot interaction, SGD with sparse gradients."""
    import torch
    from torch import nn

    tables = nn.ModuleList(
        nn.EmbeddingBag(ROWS, DIM, mode="sum", sparse=True) for _ in range(TABLES)
    )
    bottom = nn.Sequential(nn.Linear(DENSE, 256), nn.ReLU(), nn.Linear(256, DIM), nn.ReLU())
    features = TABLES + 1
    pairs = features * (features - 1) // 2
    top = nn.Sequential(
        nn.Linear(DIM + pairs, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 1)
    )
    model = nn.ModuleDict({"tables": tables, "bottom": bottom, "top": top}).to(device)
    dense = torch.randn(DLRM_BATCH, DENSE, device=device)
    labels = torch.randint(2, (DLRM_BATCH, 1), device=device).float()
    offsets = torch.arange(0, DLRM_BATCH * POOLING, POOLING, device=device)
    looked_up = DLRM_BATCH * POOLING
    indices = [torch.randint(ROWS, (looked_up,), device=device) for _ in range(TABLES)]
    rows, columns = torch.triu_indices(features, features, offset=1, device=device)

    def loss() -> Any:
        below = bottom(dense)
        pooled = [table(at, offsets) for table, at in zip(tables, indices, strict=True)]
        stacked = torch.stack([below, *pooled], dim=1)
        dots = torch.bmm(stacked, stacked.transpose(1, 2))[:, rows, columns]
        return nn.functional.binary_cross_entropy_with_logits(
            top(torch.cat([below, dots], dim=1)), labels
        )

    return _stepper(model, loss, sparse=True)


def _stepper(model: Any, loss: Callable[[], Any], *, sparse: bool = False) -> Callable[[], None]:
    import torch

    parameters = model.parameters()
    optimizer: Any = (
        torch.optim.SGD(parameters, lr=0.01)
        if sparse
        else torch.optim.Adam(parameters, foreach=False)
    )

    def step() -> None:
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()

    return step


#: By name: what makes a step on a device, ``cpu`` or ``cuda``.
JOBS: dict[str, Callable[[str], Callable[[], None]]] = {
    "mlp": mlp,
    "transformer": transformer,
    "dlrm": dlrm,
}
