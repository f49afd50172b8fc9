"""What processes find done when tests fork them: imports, and files that are read once."""

from __future__ import annotations

from contextlib import suppress
import os

# Threads do not survive a fork.
os.environ["OMP_NUM_THREADS"] = "1"

import dse
import dse._process.fork_server
import dse.launch._rank
import tests.search.runs  # noqa: F401

with suppress(ImportError):
    import torch.distributed  # noqa: F401

for platform in ("a100_sxm_80", "h100_sxm"):
    dse.predict("dlrm_tiny", platform, world_size=2, global_batch_size=16384)
