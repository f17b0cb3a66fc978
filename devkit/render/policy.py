"""What the policy asks of a project's settings, before anything is rendered."""

from devkit.errors import DevkitError
from devkit.facts.policy import Policy
from devkit.render.choices import CHOICES_PATH, Choices
from devkit.text import listed

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


def allowed_image(image: str, policy: Policy) -> str:
    """A service's image under the name that the policy gives it. Raises DevkitError for one that is not allowed."""
    found = policy.mirrored(image)
    if not policy.allows_image(found):
        raise DevkitError(
            f"a profile needs {found}, which is not of an allowed registry: {listed(policy.registries, 'or')}",
            f"Leave the profile out, or name where the image may be taken from in policy.mirrors of {CHOICES_PATH}.",
        )
    return found
