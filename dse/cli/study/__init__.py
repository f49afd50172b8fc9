"""Commands that make a study or read one."""

from __future__ import annotations

from dse.cli.study._compare import compare_command
from dse.cli.study._export import export_command
from dse.cli.study._recommend import recommend_command
from dse.cli.study._report import report_command
from dse.cli.study._run import run_command
from dse.cli.study._validate import validate_command
from dse.cli.study._whatif import whatif_command

__all__ = [
    "compare_command",
    "export_command",
    "recommend_command",
    "report_command",
    "run_command",
    "validate_command",
    "whatif_command",
]
