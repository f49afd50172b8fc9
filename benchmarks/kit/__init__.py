"""Parts of the GPU kit: each measures one thing, writes its own file, and continues it."""
