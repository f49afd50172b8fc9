"""Modules and batches that look like TorchRec's to somebody who asks what they offer."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

torch = __import__("pytest").importorskip("torch")


@dataclass
class Config:
    """Like `EmbeddingBagConfig`."""

    name: str
    num_embeddings: int
    embedding_dim: int
    feature_names: list[str]
    data_type: str = "FP32"


class Bags(torch.nn.Module):
    """Like `EmbeddingBagCollection`."""

    def __init__(self, *configs, weighted=False):
        super().__init__()
        self._configs, self._weighted = configs, weighted
        self.tables = torch.nn.ModuleList(
            torch.nn.EmbeddingBag(one.num_embeddings, one.embedding_dim, device="meta")
            for one in configs
        )

    def embedding_bag_configs(self):
        return self._configs

    def is_weighted(self):
        return self._weighted


class Rows(Bags):
    """Like `EmbeddingCollection`."""

    embedding_bag_configs = is_weighted = property()

    def embedding_configs(self):
        return self._configs


def mlp(*widths):
    layers = [torch.nn.Linear(*pair) for pair in pairwise(widths)]
    return torch.nn.Sequential(*layers)


class InteractionArch(torch.nn.Module):
    """Known by its name."""


class LowRankCrossNet(torch.nn.Module):
    """Known by its fields."""

    def __init__(self, width, layers, rank):
        super().__init__()
        self._num_layers, self._low_rank = layers, rank
        self.kernels = torch.nn.ParameterList(
            torch.zeros(2 * width * rank + width) for _ in range(layers)
        )


class Dlrm(torch.nn.Module):
    """Like TorchRec's `DLRM`."""

    def __init__(self, bags, interaction, bottom=(13, 32, 16), over=(22, 8, 1)):
        super().__init__()
        self.sparse_arch = bags
        self.dense_arch, self.over_arch = mlp(*bottom), mlp(*over)
        self.inter_arch = interaction


class Part:
    """Like `JaggedTensor`."""

    def __init__(self, lengths, values):
        self._lengths, self._values = torch.as_tensor(lengths), torch.as_tensor(values)

    def lengths(self):
        return self._lengths

    def values(self):
        return self._values


class Jagged:
    """Like `KeyedJaggedTensor`."""

    def __init__(self, **features):
        self._parts = {name: Part(*both) for name, both in features.items()}

    def keys(self):
        return list(self._parts)

    def stride(self):
        return len(next(iter(self._parts.values())).lengths())

    def to_dict(self):
        return self._parts


@dataclass
class Batch:
    """Like `torchrec.datasets.utils.Batch`."""

    dense_features: object
    sparse_features: Jagged


def drawn(rng, law, rows, samples, mean, table="t"):
    """Lengths and rows of a feature's bags, Poisson around a mean."""
    lengths = rng.poisson(mean, samples)
    return lengths, law.sample(rng, rows, int(lengths.sum()), table)


def rng(seed=0):
    return np.random.default_rng(seed)
