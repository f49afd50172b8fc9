"""Puts the script of Plotly into the package, so that Plotly is needed to build it only.

The page of a study draws with that script alone; the Python package around it takes 70 MB.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from plotly.offline import get_plotlyjs

SCRIPT = "dse/report/page/plotly.min.js"


class PlotlyScript(BuildHookInterface):
    """Writes the script beside the module that reads it, for wheels and for installs with `-e`."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Writes the script and has it packed."""
        del version
        script = Path(self.root, SCRIPT)
        # Whole at any time: another build may read it at this moment.
        written = script.with_suffix(f".{os.getpid()}")
        written.write_text(get_plotlyjs(), encoding="utf-8")
        written.replace(script)
        build_data["artifacts"].append(f"/{SCRIPT}")
