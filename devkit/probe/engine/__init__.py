"""The container engine: its client, daemon, containers, and Container Toolkit."""
