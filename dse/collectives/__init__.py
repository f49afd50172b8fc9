"""collectives."""

from __future__ import annotations
