"""Storing finished trials: a journal file, or a database that several runs share."""

from __future__ import annotations

from dse.search.storage._journal import Journal
from dse.search.storage._journal_repair import JournalDamage
from dse.search.storage._storage import ClaimedBatch, LocalStorage, StudyStorage

__all__ = [
    "ClaimedBatch",
    "Journal",
    "JournalDamage",
    "LocalStorage",
    "StudyStorage",
]
