"""This release of devkit: its version, where it is documented, and how it is installed."""

__version__ = "0.2.0"

DOCUMENTATION_URL = "https://devkit-gpu.readthedocs.io/en/latest"
"""The documentation site, which `make docs` builds; `docs/generate.py` hands it to mkdocs."""

GENERATED_MARK = "Written by devkit"
"""Begins the files that devkit writes."""

INSTALL_MCP_COMMAND = "uv tool install '.[mcp]'"
"""How to install devkit with its server for AI assistants."""

INSTALL_WORKLOAD_COMMAND = "devkit plan --pip | uv pip install --requirements -"
"""How to install what training needs: in the versions and from the index that fit this machine's driver and GPUs."""
