"""Runs the proof, in place or inside the project's dev container, and writes its report."""
