"""A small space, and made-up ones with known answers and bounds below them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hypothesis import strategies as st

from dse.config import parse_document
from dse.search._proposals import Effort
from dse.search._records import TrialStatus
from dse.search.evaluate._evaluator import Evaluator
from dse.search.evaluate._judge import unbounded, without_answer
from dse.search.space import Objective, SpaceDocument
from dse.workload import Parameter

SPACE = """\
schema_version: 1
name: exact
workload: {model: dlrm_tiny}
parameters:
  platform: [a100_sxm_80, h100_sxm, v100_dgx2]
  world_size: [2, 4, 8, 16]
  global_batch_size: [16384, 65536]
  network: [default, slow]
  communication_precision: [fp32, fp16]
  sharding_types:
    - [table_wise]
    - [table_wise, row_wise]
    - [table_wise, table_row_wise]
objectives:
  - {metric: throughput_samples_per_s, direction: maximize}
  - {metric: cost_usd_per_million_samples, direction: minimize}
networks:
  slow: {kind: ethernet, nics: 1, bandwidth: 100 Gbit/s, latency: 20 us}
search: {batch: 4, improvement_rounds: 1, planners: [size_greedy]}
"""


@dataclass(frozen=True)
class MadeUp:
    """A space of numbered configurations with known answers and bounds below them.

    Attributes:
        answers: Costs of each configuration.
        margins: How far its first bound lies below them; the second one half as far.
        feasible: Whether it turns out to be feasible.
    """

    answers: list[tuple[float, float]]
    margins: list[float]
    feasible: list[bool]

    @property
    def space(self):
        space = parse_document(SPACE, SpaceDocument, file="space").to_space()
        return replace(
            space,
            parameters=(Parameter("index", tuple(range(len(self.answers)))),),
            objectives=(
                Objective("iteration_time_s", maximize=False),
                Objective("cost_usd_per_million_samples", maximize=False),
            ),
            constraints=(),
        )


class MadeUpEvaluator(Evaluator):
    def __init__(self, made_up):
        super().__init__(made_up.space)
        self.made_up = made_up

    finest_bound = Effort.OWN_BOUND
    bounds_time = True

    def reject(self, parameters):
        return ""

    def bound(self, proposal):
        return self._at(proposal, self.made_up.margins[dict(proposal.parameters)["index"]])

    def bounded(self, proposal, time_s):
        return self._at(proposal, 0.5 * self.made_up.margins[dict(proposal.parameters)["index"]])

    def _at(self, proposal, margin):
        answer = self.made_up.answers[dict(proposal.parameters)["index"]]
        values = tuple(value - margin for value in answer)
        return replace(unbounded(self.space, proposal), values=values)

    def _evaluate(self, number, parameters):
        index = parameters["index"]
        feasible = self.made_up.feasible[index]
        status = TrialStatus.FEASIBLE if feasible else TrialStatus.INFEASIBLE
        record = without_answer(number, status, "" if feasible else "does not fit", parameters)
        return replace(record, values=self.made_up.answers[index])


costs = st.integers(0, 12).map(float)


@st.composite
def made_up(draw):
    count = draw(st.integers(1, 40))
    return MadeUp(
        draw(st.lists(st.tuples(costs, costs), min_size=count, max_size=count)),
        draw(st.lists(st.sampled_from([0.0, 1.0, 3.0, 9.0]), min_size=count, max_size=count)),
        draw(st.lists(st.booleans(), min_size=count, max_size=count)),
    )
