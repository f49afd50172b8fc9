"""Memory of a pipeline stage: its account, recomputation, and what lies in host memory."""
