"""The generated dev container: Dockerfile, Compose files, devcontainer.json, and what they install."""
