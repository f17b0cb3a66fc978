"""Images as Apptainer and enroot name them.

Sources: https://apptainer.org/docs/user/main/definition_files.html,
https://github.com/NVIDIA/enroot/blob/master/doc/cmd/import.md
"""

from devkit.errors import DevkitError


def enroot_name(image: str) -> str:
    """REGISTRY#NAME:TAG, as enroot and Pyxis write it. Raises DevkitError for a digest, which their form lacks."""
    if "@" in image:
        raise DevkitError(f"--image {image} names a digest, for which enroot has no form", "Name the image by its tag.")
    first, slash, rest = image.partition("/")
    return f"{first}#{rest}" if slash and _is_registry(first) else image


def _is_registry(first: str) -> bool:
    """As Docker tells a registry from the first part of a name.

    Source: https://github.com/distribution/reference, splitDockerDomain
    """
    return "." in first or ":" in first or first == "localhost"
