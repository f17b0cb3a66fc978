"""Real engines, started by the suite itself: nothing here is faked but the GPU."""
