"""Studies whose sampler places the tables."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dse.config import parse_document
from dse.errors import ConfigError
from dse.report import build_view
from dse.search import RunOptions, TrialStatus, load_study, read_inputs, run
from dse.search.space import PlanSearch, SamplerName, SpaceDocument, load_space
from dse.sharding import PLANNERS, ShardingType, check_plan
from dse.workload.dlrm.solver import planning_request

JOINT_SPACE = """\
schema_version: 1
name: joint
workload: {model: MODEL}
parameters:
  platform: h100_sxm
  world_size: [2, 4]
  global_batch_size: 16384
  sharding_types: [table_wise, column_wise, row_wise]
objectives: [{metric: iteration_time_s, direction: minimize}]
search: {trials: 20, batch: 5, plan: joint, sampler: tpe}
"""

MODEL = """\
schema_version: 1
kind: dlrm
name: six_tables
description: Made for tests
source: made for tests
dense_features: 13
bottom_mlp: [64, 32]
interaction: {kind: dot}
top_mlp: [64, 1]
precision: tf32
optimizer: {dense: sgd, sparse: sgd}
global_batch_size: 16384
table_defaults:
  dim: 32
  indices: {kind: uniform}
  data_type: fp32
tables:
  - {name: a, rows: 4000000, pooling: 40}
  - {name: b, rows: 2000000, pooling: 30}
  - {name: c, rows: 1000000, pooling: 20}
  - {name: d, rows: 1000000, pooling: 20}
  - {name: e, rows: 500000, pooling: 15}
  - {name: f, rows: 500000, pooling: 10}
"""

CUTTING = frozenset({ShardingType.TABLE_WISE, ShardingType.COLUMN_WISE, ShardingType.ROW_WISE})


@pytest.fixture
def joint_space(tmp_path):
    model = tmp_path / "six_tables.yaml"
    model.write_text(MODEL)
    path = tmp_path / "joint.yaml"
    path.write_text(JOINT_SPACE.replace("MODEL", str(model)))
    return path


def test_plans_are_as_chosen_and_ranks_are_balanced(joint_space):
    context = read_inputs(joint_space).context
    evaluator = context.make_evaluator()
    chosen = {p.name: p.choices[0] for p in context.space.parameters} | {"world_size": 4}
    tables = context.workload.model.tables
    chosen[f"plan.{tables[0].name}"] = "column_wise/2"
    chosen[f"plan.{tables[1].name}"] = "row_wise"
    record = evaluator.evaluate(0, chosen)
    assert record.status is TrialStatus.FEASIBLE
    assert record.planner.startswith("joint, ranks by ")
    plan = check_plan(record.configuration.plan, tables, 4, 8)
    placed = {table.table: table for table in plan.tables}
    assert len(set(placed[tables[0].name].ranks)) == 2
    assert placed[tables[0].name].sharding_type is ShardingType.COLUMN_WISE
    assert placed[tables[1].name].sharding_type is ShardingType.ROW_WISE
    whole = [t.ranks[0] for t in plan.tables if t.sharding_type is ShardingType.TABLE_WISE]
    # The halves of the first table go to ranks 0 and 1, so the next two tables to 2 and 3. By size
    # a half is as much as the other four tables together and fills its rank; by other costs not.
    by_size = record.planner.endswith("size")
    assert whole == ([2, 3, 2, 3] if by_size else [2, 3, 0, 1])


@pytest.mark.parametrize("sampler", ["tpe", "nsga2", "random"])
def test_joint_is_no_worse_than_the_random_planner_and_deterministic(
    joint_space, tmp_path, sampler, out_of_order
):
    fronts = []
    for folder in ("1", "2"):
        options = RunOptions(out=tmp_path / folder, sampler=SamplerName(sampler))
        study = run(joint_space, options)
        fronts.append(study.directory.pareto.read_bytes())
        out_of_order()
    assert fronts[0] == fronts[1]
    loaded = load_study(tmp_path / "1").result
    assert loaded.front == study.result.front
    best = study.result.front[0]
    scorer = read_inputs(joint_space).context.make_evaluator().job(best.configuration).scorer
    drawn = PLANNERS["random"](planning_request(scorer, CUTTING, 0))
    assert best.prediction.iteration_time_s <= scorer.score([drawn]).iteration_time_s[0]
    assert best.lower_bound_s <= best.prediction.iteration_time_s * (1 + 1e-9)


def test_the_page_shows_placements_as_a_plan_only(joint_space, tmp_path):
    study = run(joint_space, RunOptions(out=tmp_path / "s", trials=5)).result
    view = build_view(study)
    assert "world_size" in view.parameters
    assert not [name for name in view.parameters if name.startswith("plan.")]
    assert all(len(trial.parameters) == len(view.parameters) for trial in view.trials)
    # The page shows them below the summary of a candidate, from its trial.
    place = view.parameters.index("world_size")
    chosen = {record.number: dict(record.parameters)["world_size"] for record in study.records}
    assert {trial.number: trial.parameters[place] for trial in view.trials} == chosen
    labels = [label for label, _ in view.details[0].summary]
    assert not [label for label in labels if label.startswith("plan.")]
    assert view.details[0].tables


# --- refusals -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "line", "words"),
    [
        ("sampler: tpe", "sampler: grid", 10, "too many combinations for a grid"),
        ("sampler: tpe", "planners: [random]", 10, "the sampler places the tables"),
        ("sampler: tpe", "improvement_rounds: 3", 10, "the sampler places the tables"),
        ("plan: joint", "plan: jont", 10, "did you mean `joint`"),
        (
            "[table_wise, column_wise, row_wise]",
            "[[table_wise], [row_wise]]",
            8,
            "every table chooses its own type",
        ),
    ],
)
def test_wrong_spaces_are_refused_at_their_line(old, new, line, words):
    assert old in JOINT_SPACE
    with pytest.raises(ConfigError, match=rf"s\.yaml:{line}:") as caught:
        parse_document(JOINT_SPACE.replace(old, new), SpaceDocument, file="s.yaml")
    assert words in str(caught.value)


def test_the_solver_is_the_default():
    text = JOINT_SPACE.replace("plan: joint, ", "")
    space = parse_document(text, SpaceDocument, file="s.yaml").to_space()
    assert space.search.plan is PlanSearch.SOLVER


def test_a_grid_on_the_command_line_is_refused(joint_space, tmp_path):
    options = RunOptions(out=tmp_path / "grid", sampler=SamplerName.GRID)
    with pytest.raises(ConfigError, match="too many combinations for a grid"):
        run(joint_space, options)
    assert not (tmp_path / "grid").exists()


def test_too_many_tables_are_refused_at_the_line(joint_space, monkeypatch):
    monkeypatch.setattr("dse.workload.dlrm._joint.MAX_JOINT_TABLES", 3)
    with pytest.raises(ConfigError, match=r"joint\.yaml:10:\d+: search\.plan: .*at most 3 tables"):
        read_inputs(joint_space)
    with pytest.raises(ConfigError, match="space joint: search"):
        read_inputs(load_space(joint_space))


def test_several_sets_of_types_without_a_file_are_refused(joint_space):
    space = load_space(joint_space)
    parameters = tuple(
        replace(p, choices=("table_wise", "row_wise")) if p.name == "sharding_types" else p
        for p in space.parameters
    )
    with pytest.raises(ConfigError, match="every table chooses its own type"):
        read_inputs(replace(space, parameters=parameters))
