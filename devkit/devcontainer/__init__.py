"""The project's dev container: start it as the dev container CLI does, run in it, stop it, and say how to begin."""
