"""Edits of documents that keep every other byte: JSON with comments, Compose YAML, and three-way merges."""
