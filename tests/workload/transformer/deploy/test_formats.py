"""Forms of training frameworks, by name."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dse.errors import ConfigError
from dse.machine.platforms import load_platform
from dse.workload import Configuration, load_workload
from dse.workload.transformer import DEPLOY_FORMATS, TransformerWorkload
from dse.workload.transformer._deploy_format import DeployFormat

PARAMETERS = (("precision", "bf16"), ("network", "a network of the space"), ("tensor", 2))
CHOSEN = Configuration(
    "transformer", "h100_sxm", 16, 128, (*PARAMETERS, ("data_sharding", "zero1"))
)


def text(form, configuration=CHOSEN):
    platform = load_platform("h100_sxm")
    return load_workload("llama3_8b").framework_text(configuration, form, platform)


def test_every_form_is_one_of_the_frameworks():
    assert set(DEPLOY_FORMATS) == set(TransformerWorkload.frameworks)
    assert {"megatron", "torchtitan", "fsdp"} <= set(DEPLOY_FORMATS)
    assert "--tensor-model-parallel-size 2" in text("megatron").splitlines()
    assert "TENSOR = 2" in text("fsdp").splitlines()
    assert "tensor_parallel_degree = 2" in text("torchtitan").splitlines()


def test_an_unknown_form_is_refused():
    with pytest.raises(ConfigError):
        text("deepspeed")


def test_what_a_form_has_no_words_for_is_refused_by_name():
    job = load_workload("llama3_8b").job(
        load_platform("h100_sxm"), {"world_size": 16, "global_batch_size": 128, "tensor": 2}
    )
    form = DeployFormat("plain", "Plain", lambda job: job.model.name, frozenset({"data"}))
    with pytest.raises(ConfigError, match="tensor 2"):
        form.write(job)
    form = replace(form, parallelism=frozenset({"data", "tensor", "sequence_parallel"}))
    assert form.write(job) == "llama3_8b"
    experts = replace(job, model=load_workload("qwen3_30b_a3b").model)
    with pytest.raises(ConfigError, match="experts"):
        form.write(experts)


def test_what_a_form_has_no_words_for_is_named_as_options_name_it():
    chosen = {"recompute": "selective", "recompute_modules": "layernorm+mlp"}
    with pytest.raises(ConfigError, match=r"setting for recompute_modules layernorm\+mlp;"):
        text("fsdp", replace(CHOSEN, parameters=(*CHOSEN.parameters, *chosen.items())))


@pytest.mark.parametrize("form", DEPLOY_FORMATS)
def test_captured_graphs_are_written_or_refused(form):
    captured = replace(CHOSEN, parameters=(*CHOSEN.parameters, ("launch", "cuda_graphs")))
    if DEPLOY_FORMATS[form].captures:
        assert "cuda-graph" in text(form, captured)
        assert "cuda-graph" not in text(form)
    else:
        with pytest.raises(ConfigError, match="launch cuda_graphs"):
            text(form, captured)
