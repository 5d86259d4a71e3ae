"""Jobs: the table, the queue, their files, and the supervisor of the process that computes them. No torch."""
