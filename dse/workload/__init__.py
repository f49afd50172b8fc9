"""Workloads: what one training step computes, exchanges and stores, for each kind of model."""
