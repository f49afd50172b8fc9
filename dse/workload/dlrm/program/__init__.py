"""Training programs of recommendation models: what they do, and in which formats."""
