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
    program_errors,
    step_errors,
)
from dse.workload.dlrm import DLRM_PROGRAMS
from dse.workload.transformer import TRANSFORMER_PROGRAMS


def test_all_errors_belong_to_a_program():
    assert set(step_errors().programs) <= {*DLRM_PROGRAMS, *TRANSFORMER_PROGRAMS}
    for shape in step_errors().programs.values():
        assert 0 < shape.scale < 1
        assert 0 < shape.tail <= 1.2


def test_programs_without_published_steps_have_what_is_common():
    common = (step_errors().without_steps, TAIL, 0.0)
    assert program_errors("nobody's") == program_errors("") == common
    assert (
        program_errors("", median=0.2).median == program_errors("nemo", median=0.2).median == 0.2
    )


def test_the_ideal_program_leaves_nothing_out():
    assert program_errors(IDEAL, experts=True, median=0.2)[::2] == (0.0, 0.0)


def test_experts_add_in_squares():
    dense, mixture = (program_errors("nemo", experts=experts) for experts in (False, True))
    assert mixture.scale == pytest.approx(math.hypot(dense.scale, step_errors().experts))
    assert mixture.tail == dense.tail


def test_quantiles_by_hand():
    # Of four: the normal scores at 1/8 and 3/8, and the same on the slow side.
    outer, inner = 1.150349, 0.318639
    slow = [score * math.exp(TAIL * score**2 / 2) for score in (inner, outer)]
    expected = np.array([-FAST_SIDE * slow[1], -FAST_SIDE * slow[0], slow[0], slow[1]])
    assert error_quantiles(4) == pytest.approx(expected, rel=1e-5)
    assert error_quantiles(4, median=0.2) == pytest.approx(0.2 + expected, rel=1e-3)


@given(st.integers(2, 400), st.floats(0.0, 1.2))
def test_quantiles_rise_and_lie_farther_out_on_the_slow_side(count, tail):
    found = error_quantiles(count, tail)
    assert (np.diff(found) > 0).all()
    np.testing.assert_allclose(found[: count // 2], -FAST_SIDE * found[::-1][: count // 2])
