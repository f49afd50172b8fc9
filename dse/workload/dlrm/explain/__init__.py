"""What the time of an iteration is for, and what binds it."""
