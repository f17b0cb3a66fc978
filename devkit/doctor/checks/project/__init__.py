"""Checks of the project's container files (PRJ)."""
