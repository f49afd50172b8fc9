"""Executing evaluations: in this process, in worker processes, or on Ray."""
