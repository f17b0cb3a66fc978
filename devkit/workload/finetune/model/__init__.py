"""The base model: hub, files, loading, attention, adapters and loss."""
