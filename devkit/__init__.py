"""devkit: diagnose, plan, generate and prove a GPU dev container.

The functions of `devkit.api` are found here, too: `devkit.diagnose()`, `devkit.plan()`.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from devkit.api import diagnose, estimate_memory, explain, load_facts, plan, read_facts

__all__ = ["diagnose", "estimate_memory", "explain", "load_facts", "plan", "read_facts"]

__version__ = "0.1.0"

DOCUMENTATION_URL = "https://devkit-gpu.readthedocs.io/en/latest"
"""The documentation site, which `make docs` builds; `docs/generate.py` hands it to mkdocs."""

INSTALL_COMMAND = "uv tool install ."
"""How to install devkit itself: from a clone, until a package index has it."""

INSTALL_MCP_COMMAND = "uv tool install '.[mcp]'"
"""How to install devkit with its server for AI assistants."""

INSTALL_WORKLOAD_COMMAND = "devkit plan --pip | uv pip install --requirements -"
"""How to install what training needs: in the versions and from the index that fit this machine's driver and GPUs."""


def __getattr__(name: str) -> Any:  # noqa: ANN401
    """Load the Python interface when it is first used: no command needs it to start."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from devkit import api

    return getattr(api, name)
