"""Training programs as an outer parameter of a study."""

from __future__ import annotations

import pytest

from dse.config import parse_document
from dse.errors import ConfigError
from dse.machine import Precision
from dse.search import RunOptions, read_inputs, run
from dse.search.space import SpaceDocument
from dse.workload import find_program
from dse.workload.dlrm import DLRM_PROGRAMS
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
search: {sampler: nsga2, trials: 4, batch: 4, sampler: grid}
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


def test_a_program_and_its_parts_exclude_each_other(tmp_path):
    both = SPACE.replace("  precision:", "  launch: [eager]\n  precision:")
    with pytest.raises(ConfigError, match="`program` or `launch`, found both"):
        space_of(tmp_path, both)


def test_the_former_name_of_the_parameter_is_accepted(tmp_path):
    former = space_of(tmp_path, SPACE.replace("  program:", "  software_profile:"))
    assert former == space_of(tmp_path)
