"""Trains a small MLP on random data, on a GPU where there is one, and captures three steps.

    python examples/capture_mlp.py my_traces
    dse trace info my_traces

The same without `dse` in the script: `dse trace capture --out my_traces -- python train.py`.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

import torch

import dse

if TYPE_CHECKING:
    from collections.abc import Iterator


def batches(
    count: int, size: int, device: torch.device
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yields random inputs of shape `(size, 256)` and labels of shape `(size, 1)`."""
    for _ in range(count):
        yield torch.randn(size, 256, device=device), torch.rand(size, 1, device=device)


def main() -> None:
    """Trains and captures."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("traces", help="folder to write, new or empty")
    parser.add_argument("--iterations", type=int, default=16)
    parser.add_argument("--batch-size", type=int, default=2048)
    options = parser.parse_args()

    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    layers = [torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 1)]
    model = torch.nn.Sequential(*layers).to(device)
    optimizer = torch.optim.Adam(model.parameters())
    loss_of = torch.nn.BCEWithLogitsLoss()
    data = batches(options.iterations, options.batch_size, device)
    with dse.capture(options.traces) as capture:
        for inputs, labels in capture.steps(data):
            loss = loss_of(model(inputs), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    print(f"loss {loss.item():.4f}; traces in {options.traces}")  # noqa: T201


if __name__ == "__main__":
    main()
