"""Files: those that others wrote, those of our own, and the built-in documents."""
