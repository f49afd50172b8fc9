"""Scoring of sharding plans: loads of ranks, durations, and the graph filled with them."""
