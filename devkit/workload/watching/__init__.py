"""Watching a run: its curves as a picture, TensorBoard's files, samples of its GPUs."""
