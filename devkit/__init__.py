"""devkit: diagnose, plan, generate and prove a GPU dev container."""

__version__ = "0.1.0"
