"""devkit: diagnose, plan, generate and prove a GPU dev container."""

__version__ = "0.1.0"

DOCUMENTATION_URL = "https://devkit-gpu.readthedocs.io/en/latest"
"""The documentation site, which `make docs` builds; `mkdocs.yml` repeats it."""
