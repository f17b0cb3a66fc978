"""devkit: diagnose, plan, generate and prove a GPU dev container.

The functions of `devkit.api` are found here, too: `devkit.diagnose()`, `devkit.plan()`.
"""

TYPE_CHECKING = False
"""As that of typing, which takes longer to import than a Ctrl-C may wait for the line that catches it."""
if TYPE_CHECKING:
    from typing import Any

    from devkit.api import diagnose, estimate_memory, explain, load_facts, plan, read_facts
    from devkit.release import __version__

__all__ = ["__version__", "diagnose", "estimate_memory", "explain", "load_facts", "plan", "read_facts"]


def __getattr__(name: str) -> "Any":  # noqa: ANN401
    """Load the version and the Python interface when they are first used: no command needs the interface to start."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "__version__":
        from devkit.release import __version__

        return __version__
    from devkit import api

    return getattr(api, name)
