"""The .env file beside the Compose file, kept out of version control."""

import re

from devkit.errors import DevkitError


def parse_env_value(text: str, name: str) -> str:
    """Return the value of `name` without its quotes, "" when it is not set; the last line counts, as in Compose."""
    values = re.findall(rf"^(?:export )?{re.escape(name)}=(.*)$", text, re.MULTILINE)
    value = str(values[-1]).strip() if values else ""
    return value[1:-1] if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"" else value


def set_env_value(text: str, name: str, value: str) -> str:
    """Return `text` with `name` set to `value`, every other line as it was.

    Compose takes text between single quotes literally, and has no way to write a single quote there. A backslash at the
    end would escape the closing quote.
    Raises: DevkitError for a value with a single quote, a line break or a backslash at its end.
    """
    if "'" in value or "\n" in value or "\r" in value or value.endswith("\\"):
        raise DevkitError(
            f"the path {value!r} cannot be written to an .env file",
            "Use one without single quotes, line breaks, and a backslash at its end.",
        )
    line = f"{name}='{value}'"
    pattern = re.compile(rf"^(?:export )?{re.escape(name)}=.*$", re.MULTILINE)
    if pattern.search(text):
        return pattern.sub(lambda _: line, text)
    return f"{text}{'' if not text or text.endswith(chr(10)) else chr(10)}{line}\n"
