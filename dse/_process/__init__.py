"""Processes that we start, and the machine on which they run."""
