"""Training that is captured here and now."""

from __future__ import annotations

BATCH, WIDTH = 24, 16


def _steps(model, folder, batch=BATCH):
    import torch

    import dse

    optimizer = torch.optim.Adam(model.parameters(), foreach=False)
    inputs, labels = torch.randn(batch, WIDTH), torch.randint(5, (batch,))
    with dse.capture(folder, steps=2, skip=2, warm_up=1) as capture:
        for _ in capture.steps(range(9)):
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(inputs), labels)
            loss.backward()
            optimizer.step()


def _model():
    from torch import nn

    return nn.Sequential(
        nn.Linear(WIDTH, 32), nn.LayerNorm(32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 5)
    )


def capture_network(folder):
    """Captures two steps of a classifier with autograd and Adam."""
    _steps(_model(), folder)
