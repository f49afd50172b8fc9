"""PyTorch's parallelism trains to the losses and weights of a single rank."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dse.errors import ConfigError
from dse.machine import Precision
from dse.model import Activation, NormKind, Optimizer
from dse.validation import TrainerOptions, UnsupportedCandidateError, find_trainer, train
from dse.workload.transformer import MEGATRON_CORE, PYTORCH
from tests.validation.transformers import TINY, candidate

PYTORCH_TRAINER = find_trainer("pytorch")
OPTIONS = TrainerOptions(seed=2, dense_learning_rate=0.2, batches=2, double=True)

#: Without what these do differently: tied embeddings, positions, gates, other norms.
PLAIN = {
    "gated_ffn": False,
    "activation": Activation.RELU2,
    "norm": NormKind.RMS,
    "biases": True,
    "kv_heads": 4,
    "optimizer": Optimizer.ADAM,
}

#: Biases of attention alone.
BIASED = {"biases": False, "qkv_bias": True, "attention_output_bias": True}

SPREADS = {
    "replicas": {"data": 2, "micro_batch_size": 2},
    **{
        kind: {"data": 2, "data_sharding": kind, "micro_batch_size": 2}
        for kind in ("zero1", "zero2", "zero3")
    },
    "kept": {"data": 2, "data_sharding": "zero3", "reshard_after_forward": False},
    "summed": {"data": 2, "data_sharding": "zero3", "no_sync": True, "micro_batch_size": 2},
    "recomputed": {"data": 2, "data_sharding": "zero3", "recompute": "full"},
    "tensor": {"tensor": 2, "micro_batch_size": 4},
    "sequence": {"tensor": 2, "sequence_parallel": True, "micro_batch_size": 8},
}


MODELS = {
    "gated": (None, tuple(SPREADS)),
    "plain": (PLAIN, ("replicas", "zero3", "tensor", "sequence")),
    "biased": (BIASED, ("zero3", "tensor")),
}


def trained(candidates):
    """Trains candidates on the same ranks; returns what came out by their names."""
    own = list(candidates)
    found = train(own, 3, trainer="pytorch", options=OPTIONS, threads=1, timeout_s=300.0)
    return {one.name: result for one, result in zip(own, found, strict=True)}


@pytest.fixture(scope="module")
def alone():
    pytest.importorskip("torch")
    return trained(
        candidate(kind, model=model, micro_batch_size=8) for kind, (model, _) in MODELS.items()
    )


@pytest.fixture(scope="module")
def together():
    return trained(
        candidate(f"{kind}, {name}", model=model, **SPREADS[name])
        for kind, (model, names) in MODELS.items()
        for name in names
    )


@pytest.mark.parametrize("kind", MODELS)
def test_two_ranks_train_as_one(alone, together, kind):
    one = alone[kind]
    assert one.losses[0] != one.losses[1]
    for name in MODELS[kind][1]:
        found = together[f"{kind}, {name}"]
        assert found.losses == pytest.approx(one.losses, rel=1e-9), name
        assert found.weights.keys() == one.weights.keys()
        for weight, values in one.weights.items():
            # Adam divides gradients by their own size, so that their last digits count.
            np.testing.assert_allclose(found.weights[weight], values, atol=1e-6, err_msg=name)


def test_the_biases_of_attention_are_trained(alone):
    assert {name for name in alone["biased"].weights if name.endswith("bias")}
    counted = replace(TINY, **BIASED).parameter_count
    assert sum(values.size for values in alone["biased"].weights.values()) == counted


def test_any_program_is_adopted_with_its_gradients():
    own = candidate("own", data=2)
    assert PYTORCH_TRAINER.adopt(own).problem.software == PYTORCH
    narrow = replace(own.problem, software=MEGATRON_CORE, precision=Precision.BF16, program="nemo")
    adopted = PYTORCH_TRAINER.adopt(replace(own, problem=narrow))
    assert adopted.problem.gradient_bytes == narrow.gradient_bytes == 2
    assert adopted.problem.program == PYTORCH_TRAINER.program


@pytest.mark.parametrize(
    "wrong",
    [
        {"pipeline": 2},
        {"context": 2},
        {"precision": "fp16"},
        {"data": 2, "recompute": "selective"},
        {"tensor": 4},
        {"tensor": 2, "model": {"tied_embeddings": True}},
        {"tensor": 2, "model": {"vocab": 63}},
        {"tensor": 2, "sequence_parallel": True, "model": {"learned_positions": True}},
        {"model": {"dropout": True}},
    ],
    ids=str,
)
def test_what_it_has_not_is_refused(wrong):
    with pytest.raises(UnsupportedCandidateError) as refused:
        PYTORCH_TRAINER.checked(candidate("odd", **wrong), "cpu")
    assert isinstance(refused.value, ConfigError)


def test_replicas_count_in_what_stays():
    weights = 12 * TINY.parameter_count
    assert candidate("a", data=2).resident_bytes == 2 * weights
    assert candidate("b", data=2, data_sharding="zero3").resident_bytes == weights
    assert candidate("c", tensor=2).resident_bytes == weights
