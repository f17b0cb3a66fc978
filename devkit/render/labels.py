"""The labels that a policy asks of the image, as a Dockerfile quotes them."""

from devkit.errors import DevkitError
from devkit.render.settings import Settings


def label_words(settings: Settings) -> tuple[str, ...]:
    """`"name"="value"` for each label, sorted. Raises DevkitError for one that a Dockerfile cannot hold."""
    return tuple(f"{_quoted(name)}={_quoted(value)}" for name, value in sorted(settings.policy.required_labels))


def _quoted(text: str) -> str:
    """Between double quotes a backslash, a quote and the dollar of a variable are escaped, and a line cannot end.

    Source: Docker, "Dockerfile reference", LABEL and "Environment replacement".
    """
    if not text.isprintable():
        raise DevkitError(f"{text!r} cannot be a label: it is not one line of text", "Correct it in devkit.toml.")
    for letter in ("\\", '"', "$"):
        text = text.replace(letter, f"\\{letter}")
    return f'"{text}"'
