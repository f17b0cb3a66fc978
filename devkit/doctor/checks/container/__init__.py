"""TODO container."""
