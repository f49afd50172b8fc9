"""Evaluating one configuration of a workload."""
