"""Text for people: figures, suggestions, terminals and notebooks."""
