"""Checks of the container engine and the docker command (ENG)."""
