"""The container engine: its client, daemon, containers, Container Toolkit, and a smoke test."""
