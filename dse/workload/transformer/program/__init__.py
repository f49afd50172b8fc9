"""Training programs of transformers: how each is written, and where its figures come from."""
