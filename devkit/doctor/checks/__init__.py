"""The checks, one module for each domain."""
