"""TODO python."""
