"""Programs that run in processes of their own, by path, and how they are started and read."""
