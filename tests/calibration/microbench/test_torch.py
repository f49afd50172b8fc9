from __future__ import annotations

import sys

import pytest

from dse._torch import load_torch
from dse.errors import OptionalDependencyError


def test_without_torch_the_extra_of_this_project_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(OptionalDependencyError) as raised:
        load_torch()
    # The name on the package index belongs to another project.
    assert "pip install '.[validate]'" in str(raised.value)
    assert "dse[" not in str(raised.value)
