"""One training step as a graph: schedule, tasks, groups, transfers and their durations."""
