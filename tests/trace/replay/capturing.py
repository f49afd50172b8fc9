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


def capture_bags(folder):
    """Captures a model whose bags are made of indices of one and of two dimensions."""
    import torch
    from torch import nn

    class Bags(nn.Module):
        def __init__(self):
            super().__init__()
            self.bags = nn.ModuleList(nn.EmbeddingBag(50, 8, mode="sum") for _ in range(3))
            self.top = nn.Linear(3 * 8 + WIDTH, 5)
            # Seven lookups in all bags but the last, which has fewer.
            self.flat = torch.randint(50, (7 * BATCH - 3,))
            self.offsets = torch.arange(0, 7 * BATCH, 7)

        def forward(self, inputs):
            indices = inputs[:, :4].abs().long()
            pooled = [self.bags[0](indices), self.bags[1](indices)]
            pooled.append(self.bags[2](self.flat, self.offsets))
            return self.top(torch.cat([inputs, *pooled], dim=1))

    _steps(Bags(), folder)
