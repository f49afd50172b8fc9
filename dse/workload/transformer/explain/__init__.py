"""What the time of a training step is for, and what binds it."""
