"""Experiments on the machine, each with a deadline and cleaned up; their outcome is a fact."""
