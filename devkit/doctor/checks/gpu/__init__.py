"""TODO gpu."""
