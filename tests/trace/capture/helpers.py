"""A small loop to record."""

from __future__ import annotations

import torch

from dse.trace import read_kineto


class Mlp:
    """Trains two layers on random inputs; each call is an iteration."""

    def __init__(self, optimizers=1):
        self.layers = [torch.nn.Linear(8, 16), torch.nn.Linear(16, 1)]
        self.model = torch.nn.Sequential(self.layers[0], torch.nn.ReLU(), self.layers[1])
        self.optimizers = [
            torch.optim.SGD(layer.parameters(), lr=0.1) for layer in self.layers[-optimizers:]
        ]

    def __call__(self, batch=None):
        loss = self.model(torch.randn(4, 8)).mean()
        loss.backward()
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad()


def only(folder):
    (trace,) = read_kineto(folder)
    return trace


def numbers(folder):
    """Numbers of the profiler's steps in the trace of the only rank."""
    return [step.number for step in only(folder).steps]


def count(trace, name):
    return sum(trace.names[index] == name for index in trace.name)
