"""Where the running devkit came from (PEP 610), and a wheel of it for images that cannot fetch it.

The wheel is packed from the files that run now, so it needs no build backend, no network and no source tree.
The same files give the same members; their compressed bytes depend on zlib, so devkit.lock compares the members.
Source: PEP 427 for the wheel's layout, PEP 610 for direct_url.json.
"""

import base64
import hashlib
import io
import json
import zipfile
from collections.abc import Iterator
from functools import cache
from importlib.abc import Traversable
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from importlib.resources import files
from urllib.parse import urlsplit, urlunsplit

from devkit import __version__
from devkit.errors import DevkitError
from devkit.render.container.settings import DevkitSource, FromIndex, FromUrl, FromWheel
from devkit.render.templates import find_templates

DISTRIBUTION = "devkit-gpu"
_EARLIEST = (1980, 1, 1, 0, 0, 0)
_WHEEL_TEXT = "Wheel-Version: 1.0\nGenerator: devkit\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


def find_devkit_source() -> DevkitSource:
    """Where an image should take devkit from: the place this one was installed from, else a wheel of it.

    Raises: DevkitError when devkit runs without being installed, so that its metadata is missing.
    """
    installed = _installed()
    recorded = installed.read_text("direct_url.json")
    if recorded is None:
        return FromIndex(__version__)
    return parse_direct_url(json.loads(recorded)) or build_devkit_wheel()


@cache
def build_devkit_wheel() -> FromWheel:
    """The running devkit as a wheel, for an image that can fetch it from nowhere. Raises: as `devkit_source`.

    Packed once in a process: what runs stays what it is.
    """
    return pack_wheel(_installed())


def _installed() -> Distribution:
    try:
        return distribution(DISTRIBUTION)
    except PackageNotFoundError:
        raise DevkitError(
            f"devkit runs from files that are not installed, so the image has no {DISTRIBUTION} to install",
            "Install this checkout first: pip install --editable .",
        ) from None


def parse_direct_url(direct_url: dict[str, dict[str, str] | str]) -> FromUrl | None:
    """The URL in a PEP 610 record when another machine can use it; None for a local folder or file."""
    url = _without_credentials(str(direct_url["url"]))
    if url.startswith("file:"):
        return None
    vcs = direct_url.get("vcs_info")
    if isinstance(vcs, dict):
        return FromUrl(f"{vcs['vcs']}+{url}@{vcs['commit_id']}")
    archive = direct_url.get("archive_info")
    digest = archive.get("hash", "") if isinstance(archive, dict) else ""
    return FromUrl(f"{url}#{digest}" if digest else url)


def pack_wheel(installed: Distribution) -> FromWheel:
    """A pure Python wheel of devkit as it is installed, with its templates and version tables."""
    name = DISTRIBUTION.replace("-", "_")
    metadata = f"{name}-{__version__}.dist-info"
    members = {f"devkit/{path}": content for path, content in _tree(files("devkit"))}
    members |= {f"devkit/templates/{path}": content for path, content in _tree(find_templates())}
    members[f"{metadata}/METADATA"] = _metadata(installed)
    members[f"{metadata}/WHEEL"] = _WHEEL_TEXT.encode()
    members[f"{metadata}/entry_points.txt"] = b"[console_scripts]\ndevkit = devkit.cli:main\n"
    record = [f"{path},{_digest(content)},{len(content)}" for path, content in sorted(members.items())]
    members[f"{metadata}/RECORD"] = "\n".join([*record, f"{metadata}/RECORD,,", ""]).encode()
    return FromWheel(f"{name}-{__version__}-py3-none-any.whl", _zipped(members))


def _metadata(installed: Distribution) -> bytes:
    text = installed.read_text("METADATA") or ""
    # An editable install keeps the metadata of the day it was made.
    lines = [f"Version: {__version__}" if line.startswith("Version: ") else line for line in text.splitlines()]
    return "\n".join([*lines, ""]).encode()


def _tree(root: Traversable, prefix: str = "") -> Iterator[tuple[str, bytes]]:
    for entry in sorted(root.iterdir(), key=lambda entry: entry.name):
        if entry.is_dir() and entry.name != "__pycache__":
            yield from _tree(entry, f"{prefix}{entry.name}/")
        elif entry.is_file() and not entry.name.endswith((".pyc", ".pyo")):
            yield prefix + entry.name, entry.read_bytes()


def _digest(content: bytes) -> str:
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()


def _zipped(members: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for path, content in sorted(members.items()):
            entry = zipfile.ZipInfo(path, date_time=_EARLIEST)
            entry.external_attr = 0o644 << 16
            entry.create_system = 3
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, content)
    return buffer.getvalue()


def _without_credentials(url: str) -> str:
    parts = urlsplit(url)
    user, _, place = parts.netloc.rpartition("@")
    # `git` is every forge's public SSH user, not a secret.
    return url if user == "git" else urlunsplit(parts._replace(netloc=place))
