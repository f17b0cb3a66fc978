"""Programs that run in separate processes, by path, and how they are started and read."""
