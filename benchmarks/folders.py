"""Folders that benchmarks and tests read: the repository, and published measurements."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

#: Measurements of others, which are not part of the repository: `DSE_MEASUREMENTS` names their
#: folder, and docs/accuracy.md where they come from.
DATA = Path(os.environ.get("DSE_MEASUREMENTS", ROOT.parent / "shared" / "data"))
