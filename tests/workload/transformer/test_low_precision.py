"""Products of fewer than sixteen bits, and attention that is named by its program."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dse.errors import ConfigError
from dse.machine import Precision
from dse.machine.platforms import load_platform
from dse.model import AttentionKind, load_model
from dse.workload import load_workload, predict_job
from dse.workload.transformer import MEGATRON_CORE, FlashKernel, Parallelism, TransformerJob


def low_precision_job(platform, precision):
    found = replace(load_model("gpt_22b"), attention=AttentionKind.FLASH, dropout=False)
    cluster = load_platform(platform).cluster(8)
    spread = Parallelism(tensor=8, sequence_parallel=True, micro_batch_size=4)
    return TransformerJob(found, cluster, 32, precision, spread, MEGATRON_CORE)


def test_fewer_bits_shorten_steps_less_than_products():
    pytest.importorskip("xgboost")
    times = [
        predict_job(low_precision_job("b200_sxm", precision)).iteration_time_s
        for precision in (Precision.BF16, Precision.FP8, Precision.NVFP4)
    ]
    assert times[0] > times[1] > times[2] > times[0] / 4


def test_low_precision_keeps_casts_of_weights_and_smaller_activations():
    (wide,), (narrow,) = (
        [dict(account.parts) for account in low_precision_job("h100_sxm", precision).memory()]
        for precision in (Precision.BF16, Precision.FP8)
    )
    job = low_precision_job("h100_sxm", Precision.FP8)
    matrices = job.model.layers * job.model.layer_matrix_parameters / 8
    # As they are and transposed, one byte each.
    assert narrow["weights"] - wide["weights"] == pytest.approx(2 * matrices)
    assert narrow["activations"] < wide["activations"]
    for same in ("gradients", "optimizer state"):
        assert narrow[same] == wide[same]


def test_arithmetic_that_a_device_lacks_is_noted():
    assert low_precision_job("h100_sxm", Precision.FP8).notes() == ()
    (note,) = low_precision_job("h100_sxm", Precision.NVFP4).notes()
    assert "not in hardware" in note
    assert low_precision_job("a100_sxm_80", Precision.FP8).notes()


def test_present_programs_use_attention_that_hopper_was_given():
    pytest.importorskip("xgboost")
    new = low_precision_job("h100_sxm", Precision.BF16)
    new = replace(new, model=replace(new.model, sequence_length=8192))
    old = replace(new, software=replace(MEGATRON_CORE, flash_kernel=FlashKernel.FLASH2))
    times = [job.optimistic_time_s(closer=True) for job in (new, old)]
    assert times[0] < times[1]
    # Where nothing newer was measured, FlashAttention-2 it is.
    first = replace(new, cluster=load_platform("a100_sxm_80").cluster(8))
    second = replace(old, cluster=first.cluster)
    assert first.optimistic_time_s(closer=True) == second.optimistic_time_s(closer=True)


def test_recommendation_models_are_not_trained_in_fewer_bits():
    workload, v100 = load_workload("dlrm_dcnv2"), load_platform("v100_dgx2")
    asked = {"world_size": 8, "global_batch_size": 8192}
    with pytest.raises(ConfigError, match="choose from fp32, tf32, fp16, bf16"):
        workload.job(v100, {**asked, "precision": "fp8"})
    (note,) = workload.job(v100, {**asked, "precision": "bf16"}).notes()
    assert "not in hardware" in note
    assert workload.job(v100, {**asked, "precision": "fp16"}).notes() == ()
