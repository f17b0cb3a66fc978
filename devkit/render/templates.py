"""The Jinja templates, installed or in a checkout."""

import re
from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from devkit.text import escape_text

PACKAGE = Path(__file__).parents[1]


def find_templates() -> Path:
    """Return the folder of templates: inside the package when installed, beside it in a checkout."""
    packaged = PACKAGE / "templates"
    return packaged if packaged.is_dir() else PACKAGE.resolve().parent / "templates"


@cache
def get_environment(*, escapes_html: bool = False) -> Environment:
    """Return Jinja as every template expects it: an unknown name is an error. Only pages are escaped for HTML."""
    environment = Environment(
        loader=FileSystemLoader(find_templates()),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        # What is HTML already comes from templates.
        finalize=(lambda value: escape_text(value) if type(value) is str else value) if escapes_html else None,
        autoescape=escapes_html,  # noqa: S701 - otherwise it is shell and YAML, and every value is validated before
    )
    environment.filters["code"] = _mark_code
    return environment


def _mark_code(text: str) -> Markup:
    """Escape text for HTML and set what is between backticks as code."""
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(escape_text(text)))))  # noqa: S704 - escaped before


def render_template(template: str, **values: object) -> str:
    """Return the text of a template, named by its path among the templates, such as "devcontainer/gpu.sh.j2".

    In HTML every value is escaped, wherever it came from.
    """
    environment = get_environment(escapes_html=template.endswith(".html.j2"))
    return environment.get_template(template).render(**values)
