"""Published steps of GPT and MPT; see docs/transformers.md."""

from __future__ import annotations

from dataclasses import replace
import importlib
import statistics
import sys
from typing import TYPE_CHECKING

import pytest

from dse.errors import DseError
from dse.ranking import kendall_tau
from dse.workload import predict_job
from dse.workload.transformer import DataSharding, Recompute
from tests.conftest import ROOT

if TYPE_CHECKING:
    from pathlib import Path

PUBLISHED = ROOT.parent / "shared" / "data" / "published"

GPT_HEAD = (
    "source,model,layers,hidden,heads,seq,vocab,gpu,gpus,tp,pp,dp,interleave,global_batch,"
    "micro_batch,recompute,sequence_parallel,precision,s_per_iter\n"
)
MPT_HEAD = (
    "Model,SeqLen (T),# GPUs,GPU,MicroBatchSize,GlobalBatchSize,Throughput (T/s),"
    "GlobalBatchSize (T),MP Mode,Activation Checkpointing\n"
)


@pytest.fixture
def cases(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    yield importlib.import_module("transformer_cases")
    for name in ("transformer_cases", "published_cases", "published_steps"):
        sys.modules.pop(name, None)


def table(tmp_path: Path, head: str, line: str) -> Path:
    path = tmp_path / "cases.csv"
    path.write_text(head + line + "\n")
    return path


STEP = {
    "source": "",
    "case": "a",
    "model": "",
    "layers": "16",
    "hidden": "2048",
    "heads": "32",
    "kv_heads": "32",
    "ffn_hidden": "8192",
    "gated_ffn": "1",
    "vocab": "131072",
    "tied": "1",
    "seq": "4096",
    "platform": "h100_sxm",
    "gpus": "16",
    "tp": "4",
    "pp": "2",
    "vp": "1",
    "cp": "1",
    "ep": "1",
    "dp": "2",
    "sharding": "zero1",
    "micro_batch": "2",
    "global_batch": "256",
    "recompute": "none",
    "sequence_parallel": "1",
    "precision": "bf16",
    "program": "nanotron",
    "status": "ok",
    "s_per_step": "8.0",
    "peak_memory_gb": "",
}


def published(name: str) -> Path:
    if not (PUBLISHED / name).is_file():
        pytest.skip(f"{name} is not beside the project")
    return PUBLISHED / name


def test_what_the_authors_ran_fills_what_the_table_leaves_open(cases, tmp_path):
    line = (
        "Narayanan et al. 2021,7.5B,36,4096,32,2048,51200,A100-SXM-80GB,128,4,1,32,1,512,,full,"
        "no,fp16,3.7"
    )
    (case,) = cases.transformer_cases(table(tmp_path, GPT_HEAD, line))
    job = case.job
    assert (job.parallelism.micro_batch_size, job.parallelism.interleave) == (16, 1)
    assert job.cluster.name == "a100_sxm_80"
    assert job.software.overlap_gradients
    assert not job.software.overlap_tensor
    assert case.low_s < case.predicted_s < case.high_s


def test_the_fastest_that_fits_fills_the_rest(cases, tmp_path):
    line = "X 2023,9B,40,4096,32,2048,51200,H100-SXM-80GB,16,4,2,2,,64,,selective,yes,bf16,1"
    (case,) = cases.transformer_cases(table(tmp_path, GPT_HEAD, line))
    chosen = case.job.parallelism
    assert chosen.micro_batch_size in (1, 2, 4, 8, 16)
    assert chosen.interleave in (1, 2, 4)
    assert chosen.recompute is Recompute.SELECTIVE
    assert case.prediction.feasible
    for size in (1, 2, 4, 8, 16):
        other = replace(chosen, micro_batch_size=size, interleave=1)
        prediction = predict_job(replace(case.job, parallelism=other))
        assert not prediction.feasible or prediction.iteration_time_s >= case.predicted_s


def test_a_line_of_the_other_table(cases, tmp_path):
    line = "7b,8192,16,h100_80gb,2,64,50000,524288,DEFAULT,True"
    (case,) = cases.transformer_cases(table(tmp_path, MPT_HEAD, line))
    job = case.job
    assert case.measured_s == pytest.approx(524288 / 50000)
    assert job.cluster.name == "h100_sxm"
    assert job.model.sequence_length == 8192
    assert job.parallelism.data_sharding is DataSharding.PARAMETERS
    assert job.parallelism.recompute is Recompute.FULL
    assert job.micro_batches == 2
    assert job.software.gradient_bytes == 4


def test_unknown_devices_and_missing_tables_are_refused(cases, tmp_path):
    with pytest.raises(DseError, match="no platform is known for the device `tpu`"):
        list(cases.transformer_cases(table(tmp_path, MPT_HEAD, "7b,2048,8,tpu,1,8,1,1,PURE,True")))
    with pytest.raises(DseError, match="cannot read"):
        list(cases.transformer_cases(tmp_path / "none.csv"))
    with pytest.raises(DseError, match="s_per_step"):
        list(cases.transformer_cases(table(tmp_path, "a,b\n", "1,2")))


def inside(found) -> float:
    """Share of published times inside their intervals."""
    return sum(case.inside for case in found) / len(found)


def test_published_gpt_steps_are_met(cases):
    # Calculon reaches a mean of 3.65 % and a maximum of 8.87 % on such steps.
    found = list(cases.transformer_cases(published("transformer_training_cases.csv")))
    errors = [abs(case.error) for case in found]
    assert sum(errors) / len(errors) <= 0.04
    assert max(errors) <= 0.09
    assert inside(found) >= 0.85


def test_published_mpt_steps_are_met(cases):
    found = list(cases.transformer_cases(published("mpt_fsdp_training_cases.csv")))
    measured_s = [case.measured_s for case in found]
    predicted_s = [case.predicted_s for case in found]
    assert statistics.median(abs(case.error) for case in found) <= 0.08
    assert kendall_tau(measured_s, predicted_s) >= 0.9
    assert 0.85 <= inside(found) <= 0.97
    # All of them ran, so all have to fit into the card, and nearly all next to what is reserved.
    for case in found:
        assert case.prediction.memory[0].total_bytes <= case.job.cluster.device.memory_bytes
    assert sum(not case.prediction.feasible for case in found) <= 2


def test_steps_of_nanotron_ran_on_the_network_of_their_cloud(cases):
    steps = importlib.import_module("published_steps")
    job = steps.published_job(STEP)
    assert (job.program, job.cluster.network.kind) == ("nanotron", "efa")
    assert job.layers_by_chunk == (10, 6)
    other = steps.published_job({**STEP, "program": "megatron_bridge"})
    assert other.cluster.network.kind == "infiniband"
