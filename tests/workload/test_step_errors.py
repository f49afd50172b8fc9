"""How far off predicted steps may be, for each program."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest

from dse.workload import IDEAL
from dse.workload._step_errors import (
    FAST_SIDE,
    TAIL,
    error_quantiles,
    program_spread,
    step_errors,
)
from dse.workload.dlrm import DLRM_PROGRAMS
from dse.workload.transformer import TRANSFORMER_PROGRAMS


def test_every_spread_belongs_to_a_program():
    assert set(step_errors().programs) <= {*DLRM_PROGRAMS, *TRANSFORMER_PROGRAMS}
    assert all(0 < spread < 1 for spread in step_errors().programs.values())


def test_programs_without_published_steps_have_that_of_all():
    assert program_spread("nobody's") == program_spread("") == step_errors().without_steps
    assert program_spread(IDEAL) == 0.0


def test_experts_add_in_squares():
    dense, mixture = (program_spread("nemo", experts=experts) for experts in (False, True))
    assert mixture == pytest.approx(math.hypot(dense, step_errors().experts))


def test_quantiles_by_hand():
    # Of four: the normal scores at 1/8 and 3/8, and the same on the slow side.
    outer, inner = 1.150349, 0.318639
    slow = [score * math.exp(TAIL * score**2 / 2) for score in (inner, outer)]
    expected = [-FAST_SIDE * slow[1], -FAST_SIDE * slow[0], slow[0], slow[1]]
    assert error_quantiles(4) == pytest.approx(expected, rel=1e-5)


@given(st.integers(2, 400))
def test_quantiles_rise_and_lie_farther_out_on_the_slow_side(count):
    found = error_quantiles(count)
    assert (np.diff(found) > 0).all()
    np.testing.assert_allclose(found[: count // 2], -FAST_SIDE * found[::-1][: count // 2])
