"""Proposing configurations: samplers, and placements as parameters."""
