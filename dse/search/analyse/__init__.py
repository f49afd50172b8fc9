"""Analysing finished trials: front, hypervolume, bounds, sensitivity, conclusion."""
