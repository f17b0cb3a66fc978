"""TODO project."""
