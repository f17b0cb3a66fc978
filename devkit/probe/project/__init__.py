"""The project's own container files."""
