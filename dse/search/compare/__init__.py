"""Comparing two studies: what they were made from, their fronts, candidates of both."""
