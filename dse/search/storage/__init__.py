"""Storing finished trials: a journal file, or a database that several runs share."""
