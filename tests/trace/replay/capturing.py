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
            self.ending = nn.EmbeddingBag(50, 8, mode="sum", include_last_offset=True)
            self.top = nn.Linear(5 * 8 + WIDTH, 5)
            # Seven lookups in all bags but the last, which has fewer.
            self.flat = torch.randint(50, (7 * BATCH - 3,))
            self.offsets = torch.arange(0, 7 * BATCH, 7)
            self.ends = torch.cat([self.offsets, torch.tensor([len(self.flat)])])

        def forward(self, inputs):
            indices = inputs[:, :4].abs().long()
            pooled = [self.bags[0](indices), self.bags[1](indices)]
            pooled.append(self.bags[2](self.flat, self.offsets))
            pooled.append(self.ending(self.flat, self.ends))
            pooled.append(self.ending(indices.flatten(), torch.arange(0, 4 * BATCH + 1, 4)))
            return self.top(torch.cat([inputs, *pooled], dim=1))

    _steps(Bags(), folder)


def capture_tables(folder):
    """Captures a model with two tables that FBGEMM keeps in one block."""
    from fbgemm_gpu.split_embedding_configs import EmbOptimType
    from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation
    from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
        ComputeDevice,
        SplitTableBatchedEmbeddingBagsCodegen,
    )
    import torch
    from torch import nn

    class Tables(nn.Module):
        def __init__(self):
            super().__init__()
            table = (50, 8, EmbeddingLocation.HOST, ComputeDevice.CPU)
            self.tables = SplitTableBatchedEmbeddingBagsCodegen(
                [table, table], optimizer=EmbOptimType.EXACT_SGD
            )
            self.top = nn.Linear(2 * 8 + WIDTH, 5)
            self.flat = torch.randint(50, (2 * 7 * BATCH,))
            self.offsets = torch.arange(0, 2 * 7 * BATCH + 1, 7)

        def forward(self, inputs):
            pooled = self.tables(self.flat, self.offsets)
            return self.top(torch.cat([inputs, pooled], dim=1))

    _steps(Tables(), folder)
