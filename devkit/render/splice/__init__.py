"""TODO splice."""
