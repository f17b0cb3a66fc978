"""The packages that training and generating need, which devkit itself does not."""

import importlib.util
import sys

from devkit.errors import DevkitError

NEEDED = ("torch", "transformers", "peft", "accelerate")


def require_workload() -> None:
    """Raise DevkitError where one of them is not installed."""
    for name in NEEDED:
        if importlib.util.find_spec(name) is None:
            raise DevkitError(f"{name} is not installed for {sys.executable}", "pip install 'devkit-gpu[workload]'")
