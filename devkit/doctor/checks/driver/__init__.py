"""TODO driver."""
