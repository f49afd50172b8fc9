"""One iteration: its tasks, their order, and how long each of them takes."""
