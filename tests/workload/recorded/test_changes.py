"""Changes of a configuration as a file of steps."""

from __future__ import annotations

import pytest
import yaml

from dse.trace.whatif import parse_optimization, read_changes
from dse.workload.recorded import changes_document


@pytest.mark.parametrize(
    "text", ["network=2x", "amp,communication=2x", "network=2x,latency=0.5x", "fused_optimizer"]
)
def test_a_file_says_what_the_command_line_says(tmp_path, text):
    file = tmp_path / "steps.yaml"
    file.write_text(yaml.safe_dump(changes_document("one", "", [], [text], {})))
    (step,) = read_changes(file)
    assert step == parse_optimization(text)
