"""Training programs as an outer parameter of a study."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dse.config import parse_document
from dse.errors import ConfigError
from dse.machine import Precision
from dse.search import RunOptions, read_inputs, run
from dse.search.space import SpaceDocument
from dse.workload import LaunchMode, find_program
from dse.workload.dlrm import (
    DLRM_PROGRAMS,
    DlrmWorkload,
    TrainPipeline,
    WireFormat,
    WireFormats,
)
from tests.search.test_joint_plans import MODEL

SPACE = """\
schema_version: 1
name: programs
workload: {model: MODEL}
parameters:
  platform: a100_sxm_80
  world_size: 2
  global_batch_size: 16384
  precision: [tf32, fp16]
  program: [torchrec, hugectr]
objectives: [{metric: iteration_time_s, direction: minimize}]
search: {trials: 4, batch: 4, sampler: grid}
"""


def space_of(tmp_path, text=SPACE):
    model = tmp_path / "six_tables.yaml"
    model.write_text(MODEL)
    return parse_document(
        text.replace("MODEL", str(model)), SpaceDocument, file="s.yaml"
    ).to_space()


def test_a_study_compares_programs(tmp_path):
    space = space_of(tmp_path)
    assert "launch" not in [parameter.name for parameter in space.parameters]
    study = run(space, RunOptions(out=tmp_path / "study", executor="serial"))
    times = {}
    evaluator = read_inputs(space).context.make_evaluator()
    for record in study.result.records:
        configuration = record.configuration
        wanted = find_program(DLRM_PROGRAMS, configuration.program)
        precision = Precision(configuration.value("precision"))
        assert evaluator.job(configuration).problem.software == wanted.software_for(precision)
        times[configuration.program, precision.value] = record.prediction.iteration_time_s
    assert len(times) == 4
    assert times["torchrec", "fp16"] > times["hugectr", "fp16"]


def test_an_unknown_program_is_refused_before_anything_runs(tmp_path):
    space = space_of(tmp_path, SPACE.replace("hugectr", "hugctr"))
    with pytest.raises(ConfigError, match="did you mean `hugectr`"):
        run(space, RunOptions(out=tmp_path / "study", executor="serial"))


def test_parts_of_a_program_can_be_overridden(tmp_path):
    parts = (
        "launch: [eager, cuda_graphs]\n  communication_precision: fp16\n  prefetch_input: false"
    )
    space = space_of(tmp_path, SPACE.replace("  precision:", f"  {parts}\n  precision:"))
    job = read_inputs(space).context.make_evaluator().open_job
    fixed = {"platform": "a100_sxm_80", "world_size": 2, "global_batch_size": 16384}
    chosen = {parameter.name: parameter.choices for parameter in space.parameters}
    overrides = {name: chosen[name][-1] for name in parts_of(chosen)}
    for program in chosen["program"]:
        if program == "hugectr":
            # It converts nothing on the way: half of what it does is no program.
            with pytest.raises(ConfigError, match="hugectr has no conversion on the wire"):
                job({**fixed, "program": program, **overrides})
            continue
        with pytest.raises(ConfigError, match="cannot be captured"):
            job({**fixed, "program": program, **overrides, "launch": "cuda_graphs"})
        overrides = {**overrides, "launch": "eager"}
        found = job({**fixed, "program": program, **overrides})
        written = find_program(DLRM_PROGRAMS, program).software
        assert found.program == program
        assert found.problem.software == replace(
            written,
            launch=LaunchMode.EAGER,
            wire=WireFormats.of(WireFormat.FP16, codec=written.wire.codec),
            pipeline=TrainPipeline.BASE,
        )


def parts_of(chosen):
    return chosen.keys() & {"launch", "communication_precision", "train_pipeline"}


def test_studies_of_earlier_versions_that_name_no_program_had_the_ideal_one(tmp_path):
    evaluator = read_inputs(space_of(tmp_path)).context.make_evaluator()
    parameters = {"platform": "a100_sxm_80", "world_size": 2, "global_batch_size": 16384}
    job = evaluator.open_job(parameters)
    assert job.program == "torchrec"
    former = replace(evaluator.configuration(job, parameters), program="")
    assert evaluator.job(former).program == "ideal"


def test_a_space_without_a_program_has_the_default_one(tmp_path):
    text = SPACE.replace("  program: [torchrec, hugectr]\n", "")
    chosen = {
        parameter.name: parameter.choices for parameter in space_of(tmp_path, text).parameters
    }
    assert chosen["program"] == (DlrmWorkload.default_program,) == ("torchrec",)
    assert not parts_of(chosen)


def test_the_former_name_of_the_parameter_is_accepted(tmp_path):
    former = space_of(tmp_path, SPACE.replace("  program:", "  software_profile:"))
    assert former == space_of(tmp_path)
