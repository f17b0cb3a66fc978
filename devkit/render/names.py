"""Project names: which ones every generated format can carry, and their short form for engines."""

import hashlib
import re
import unicodedata

from devkit.errors import DevkitError

_REFUSED = frozenset('"`$\\')
_LONGEST = 100
_LONGEST_SLUG = 40


def checked_name(name: str) -> str:
    """`name`, when JSON, YAML, shell and the dev container's own `${…}` can all carry it as it is.

    Raises: DevkitError for an empty or overlong name, control characters, and the characters " ` $ and backslash.
    """
    bad = sorted(
        {char for char in name if char in _REFUSED or unicodedata.category(char) in ("Cc", "Cf", "Cs", "Zl", "Zp")}
    )
    hint = 'Choose a plain one, such as --name my-project, or set name = "my-project" in devkit.toml.'
    if bad:
        shown = " ".join(ascii(char) for char in bad)
        raise DevkitError(f"the project name {name!r} holds characters that no file format agrees on: {shown}", hint)
    if not name.strip() or len(name) > _LONGEST:
        raise DevkitError(
            f"the project name must have 1 to {_LONGEST} characters, this one has {len(name.strip())}", hint
        )
    return name.strip()


def slug_of(name: str) -> str:
    """The name's form for Compose projects, volumes and paths: lower case a-z, 0-9 and single hyphens.

    Letters with accents lose them; a name without any Latin letter or digit becomes project-<hash>.
    """
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode().lower()
    slug = re.sub(r"[^a-z0-9]+", "-", plain)[:_LONGEST_SLUG].strip("-")
    return slug or f"project-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
