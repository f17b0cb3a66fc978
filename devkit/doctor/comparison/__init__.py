"""TODO comparison."""
