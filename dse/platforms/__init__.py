"""platforms."""

from __future__ import annotations
