"""Monitoring a run: a plot of its curves, TensorBoard files, samples of its GPUs."""
