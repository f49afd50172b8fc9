"""Compute kernels that are refused by name, with the nearest that is modelled."""

from __future__ import annotations

import json

import pytest

from dse.errors import ConfigError, PlanError
from dse.sharding import parse_allow, read_constraints, read_plan
from tests.conftest import make_table

TABLE = make_table("t", rows=100, dim=96)
REFUSED = ["key_value", "ssd_virtual_table", "dram_virtual_table"]


@pytest.mark.parametrize("kernel", REFUSED)
def test_in_plans_of_dse_and_of_torchrec(tmp_path, kernel):
    table = {"sharding_type": "table_wise", "ranks": [0], "compute_kernel": kernel}
    own = {"schema_version": 1, "world_size": 2, "tables": {"t": table}}
    foreign = {"world_size": 2, "plan": {"ebc": {"t": table}}}
    for document in (own, foreign):
        path = tmp_path / "plan.json"
        path.write_text(json.dumps(document))
        with pytest.raises((ConfigError, PlanError)) as caught:
            read_plan(path, (TABLE,))
        assert f"`{kernel}` keeps rows" in str(caught.value)
        assert "the nearest is `fused_uvm_caching`" in str(caught.value)


@pytest.mark.parametrize("kernel", REFUSED)
def test_in_constraints_and_on_the_command_line(tmp_path, kernel):
    path = tmp_path / "constraints.yaml"
    path.write_text(f"schema_version: 1\ntables:\n  t: {{compute_kernels: [{kernel}]}}\n")
    with pytest.raises(ConfigError) as caught:
        read_constraints(path)
    assert "`fused_uvm_caching`" in str(caught.value)
    with pytest.raises(ConfigError) as caught:
        parse_allow(f"t={kernel}")
    assert "`fused_uvm_caching`" in str(caught.value)
