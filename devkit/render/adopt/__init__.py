"""A dev container that somebody wrote by hand, made fit for GPU work in place."""
