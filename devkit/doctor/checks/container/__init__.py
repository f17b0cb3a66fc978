"""Checks of containers (CON): seen from inside, and by the engine that runs them."""
