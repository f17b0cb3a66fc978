"""Checks of the GPUs themselves (GPU)."""
