"""What ranks of trainers find imported, too: only slow tests train, and this takes seconds."""

from __future__ import annotations

from contextlib import suppress

import tests.warm  # noqa: F401

with suppress(ImportError):
    import torch._dynamo  # noqa: F401 - by optimizers
with suppress(ImportError, OSError):
    import torchrec  # noqa: F401
