"""TODO monitoring."""
