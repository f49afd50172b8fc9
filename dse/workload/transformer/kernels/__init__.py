"""Kernels of a transformer: what each multiplies or moves, and how long that takes."""
