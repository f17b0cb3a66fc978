"""What the policy asks of a project's settings, before anything is rendered."""

from devkit.errors import DevkitError
from devkit.render.choices import CHOICES_PATH, Choices

_PUBLIC = (
    ("index", "https://pypi.org/simple"),
    ("torch_index", "https://download.pytorch.org/whl"),
)
"""Where packages come from without a mirror."""


def check_indexes(choices: Choices) -> None:
    """Raise DevkitError when packages would come from an index that the policy does not allow."""
    if choices.policy is None or choices.wheelhouse:
        return
    for key, public in _PUBLIC:
        url = getattr(choices, key) or public
        if not choices.policy.allows_index(url):
            raise DevkitError(
                f"{CHOICES_PATH}: packages would come from {url}, which policy.indexes does not allow",
                f"Name an allowed one as network.{key}: {', '.join(choices.policy.indexes)}.",
            )
