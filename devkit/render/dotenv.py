"""The .env file beside the Compose file: this host's own settings, kept out of version control."""

import re

from devkit.errors import DevkitError


def setting_in(text: str, name: str) -> str:
    """The value of `name`, without the quotes around it, "" when it is not set; the last line counts, as in Compose."""
    values = re.findall(rf"^(?:export )?{re.escape(name)}=(.*)$", text, re.MULTILINE)
    return str(values[-1]).strip().strip("'\"") if values else ""


def with_setting(text: str, name: str, value: str) -> str:
    """`text` with `name` set to `value`, every other line as it was.

    Compose takes what stands between single quotes as it is, and has no way to write a single quote there.
    Raises: DevkitError for a value with a single quote or a line break.
    """
    if "'" in value or "\n" in value or "\r" in value:
        raise DevkitError(
            f"the path {value!r} cannot stand in an .env file", "Use one without single quotes and line breaks."
        )
    line = f"{name}='{value}'"
    pattern = re.compile(rf"^(?:export )?{re.escape(name)}=.*$", re.MULTILINE)
    if pattern.search(text):
        return pattern.sub(lambda _: line, text)
    return f"{text}{'' if not text or text.endswith(chr(10)) else chr(10)}{line}\n"
