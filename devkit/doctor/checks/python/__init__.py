"""Checks of the workload's Python packages (PYT)."""
