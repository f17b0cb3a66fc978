"""TODO dependencies."""
