"""Dense parts of several kinds over real collections, and batches for them."""

from __future__ import annotations

import pytest

pytest.importorskip("torchrec", exc_type=(ImportError, OSError))

import torch
from torch import nn
import torchrec
from torchrec.models.deepfm import SimpleDeepFMNN
from torchrec.modules.crossnet import CrossNet

#: Width of the vectors of every table.
DIM = 16
#: Positions of every sequence.
LENGTH = 6


def bags(device="cpu"):
    """Two tables, of which one has two features: three vectors a sample."""
    tables = [
        torchrec.EmbeddingBagConfig(
            name=name, num_embeddings=100, embedding_dim=DIM, feature_names=features
        )
        for name, features in (("user", ["viewer", "owner"]), ("item", ["item"]))
    ]
    return torchrec.EmbeddingBagCollection(device=torch.device(device), tables=tables)


def history():
    """A table without pooling."""
    table = torchrec.EmbeddingConfig(
        name="history", num_embeddings=100, embedding_dim=DIM, feature_names=["history"]
    )
    return torchrec.EmbeddingCollection(device=torch.device("cpu"), tables=[table])


def jagged(samples, **lengths):
    """A `KeyedJaggedTensor` with as many lookups of each feature as a number or list says."""
    each = [
        torch.full((samples,), own) if isinstance(own, int) else torch.tensor(own)
        for own in lengths.values()
    ]
    together = torch.cat(each)
    rows = torch.arange(int(together.sum())) % 100
    return torchrec.KeyedJaggedTensor(list(lengths), rows, lengths=together)


def sparse(samples):
    return jagged(samples, viewer=1, owner=2, item=1)


class Mlp(nn.Module):
    """A bottom MLP beside the lookups, and one over everything."""

    def __init__(self, device="cpu"):
        super().__init__()
        self.bags = bags(device)
        self.bottom = nn.Sequential(nn.Linear(13, 8, device=device), nn.ReLU())
        self.norm = nn.BatchNorm1d(8, device=device)
        self.over = nn.Sequential(nn.Linear(8 + 3 * DIM, 20, device=device), nn.Tanh())
        self.out = nn.Linear(20, 1, device=device)

    def forward(self, dense, features):
        hidden = self.norm(self.bottom(dense))
        vectors = self.bags(features).values()
        return self.out(self.over(torch.cat([hidden, vectors], dim=1))).squeeze(1)


class Mmoe(nn.Module):
    """Four experts, and a gate and a head for each of two tasks."""

    def __init__(self):
        super().__init__()
        self.bags = bags()
        self.experts = nn.ModuleList(nn.Linear(3 * DIM, 24) for _ in range(4))
        self.gates = nn.ModuleList(nn.Linear(3 * DIM, 4, bias=False) for _ in range(2))
        self.heads = nn.ModuleList(nn.Linear(24, 1) for _ in range(2))

    def forward(self, features):
        vectors = self.bags(features).values()
        experts = torch.stack([expert(vectors).relu() for expert in self.experts], dim=1)
        mixed = [
            (gate(vectors).softmax(dim=1).unsqueeze(2) * experts).sum(dim=1) for gate in self.gates
        ]
        return [head(own) for head, own in zip(self.heads, mixed, strict=True)]


class Dcn(nn.Module):
    """Two full cross layers."""

    def __init__(self):
        super().__init__()
        self.bags = bags()
        self.cross = CrossNet(3 * DIM, 2)
        self.out = nn.Linear(3 * DIM, 1)

    def forward(self, features):
        return self.out(self.cross(self.bags(features).values()))


class Forgetful(nn.Module):
    """Drops the vectors of tables before anything is kept for the backward pass."""

    def __init__(self):
        super().__init__()
        self.bags = bags()
        self.out = nn.Linear(3 * DIM, 7)

    def forward(self, features):
        shifted = self.bags(features).values() + 1.0
        return self.out(torch.sigmoid(shifted)).exp()


class Transformer(nn.Module):
    """An encoder layer over the positions of a sequence, and a head over their mean."""

    def __init__(self):
        super().__init__()
        self.history = history()
        self.encoder = nn.TransformerEncoderLayer(
            DIM, nhead=2, dim_feedforward=40, dropout=0.0, batch_first=True
        )
        self.out = nn.Linear(DIM, 1)

    def forward(self, features):
        padded = self.history(features)["history"].to_padded_dense(LENGTH)
        return self.out(self.encoder(padded).mean(dim=1))


class TwoTowers(nn.Module):
    """Two towers whose vectors are multiplied within the batch; yields its loss."""

    def __init__(self):
        super().__init__()
        self.bags = bags()
        self.user, self.item = nn.Linear(2 * DIM, 12), nn.Linear(DIM, 12)

    def forward(self, features):
        vectors = self.bags(features)
        user = self.user(torch.cat([vectors["viewer"], vectors["owner"]], dim=1))
        scores = user @ self.item(vectors["item"]).T
        return nn.functional.cross_entropy(scores, torch.arange(len(scores)))


class Positions(nn.Module):
    """A layer over every single lookup, however many a sample has."""

    def __init__(self):
        super().__init__()
        self.history, self.layer = history(), nn.Linear(DIM, 5)

    def forward(self, features):
        return self.layer(self.history(features)["history"].values())


class DeepFm(nn.Module):
    """TorchRec's own DeepFM."""

    def __init__(self):
        super().__init__()
        self.model = SimpleDeepFMNN(10, bags(), hidden_layer_size=20, deep_fm_dimension=5)

    def forward(self, dense, features):
        return self.model(dense, features)


class Reader(nn.Module):
    """Looks at its data while it runs."""

    def __init__(self):
        super().__init__()
        self.history, self.layer = history(), nn.Linear(DIM, 4)

    def forward(self, features):
        rows = self.history(features)["history"]
        longest = int(rows.lengths().max())
        return self.layer(rows.to_padded_dense(longest))
