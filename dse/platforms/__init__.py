"""Platforms: devices, nodes, links, networks and prices."""

from __future__ import annotations

from dse.platforms._load import list_platforms, load_platform, platform_from_text
from dse.platforms._platform import Platform, PlatformFact, PriceQuote
from dse.platforms._schema import PlatformDocument

__all__ = [
    "Platform",
    "PlatformDocument",
    "PlatformFact",
    "PriceQuote",
    "list_platforms",
    "load_platform",
    "platform_from_text",
]
