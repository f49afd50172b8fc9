"""What PyTorch's parallelism is tried with by `tests/validation/trainer/test_conformance.py`."""

from __future__ import annotations

from tests.validation.trainer.conformance import TrainerCase
from tests.validation.transformers import candidate

CASE = TrainerCase(
    candidates=(
        candidate("ddp", data=2, micro_batch_size=2),
        candidate("fsdp", data=2, data_sharding="zero3"),
        candidate("tensor", tensor=2, sequence_parallel=True, micro_batch_size=2),
    ),
    refused=(
        candidate("stages", pipeline=2),
        candidate("context", context=2),
        candidate("tied", tensor=2, model={"tied_embeddings": True}),
        candidate("fp8", data=2, precision="fp8"),
    ),
    losses_within=1e-4,
)
