"""TODO children."""
