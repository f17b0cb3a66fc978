"""The origin of the running devkit (PEP 610), a wheel of it for images that cannot fetch it, and the Feature that brings it.

The wheel is packed from the files that run now, so it needs no build backend, no network and no source tree.
The same files give the same members; their compressed bytes depend on zlib. The dev container Feature is one line in any
devcontainer.json; its folder holds such a wheel, so that publishing it needs no package index to have that release.
Source: PEP 427 for the layout, PEP 610 for direct_url.json, https://containers.dev/implementors/features/
"""

import base64
import hashlib
import io
import json
import zipfile
from collections.abc import Iterator
from functools import cache
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from devkit.errors import DevkitError
from devkit.probe.machine.interpreter import IMAGE_ENVIRONMENT
from devkit.release import DOCUMENTATION_URL, __version__
from devkit.render.container.settings import DevkitSource, FromIndex, FromUrl, FromWheel
from devkit.render.files import Artifact
from devkit.render.templates import PACKAGE, find_templates, render_template

DISTRIBUTION = "devkit-gpu"
_EARLIEST = (1980, 1, 1, 0, 0, 0)
_WHEEL_TEXT = "Wheel-Version: 1.0\nGenerator: devkit\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


def find_devkit_source() -> DevkitSource:
    """Find the place from which an image can install devkit: that of this installation, else a wheel of it.

    Raises: DevkitError when devkit runs without being installed, so that its metadata is missing.
    """
    recorded = _get_distribution().read_text("direct_url.json")
    if recorded is None:
        return FromIndex(__version__)
    return parse_direct_url(json.loads(recorded)) or build_devkit_wheel()


@cache
def build_devkit_wheel() -> FromWheel:
    """Pack the running devkit as a wheel, once in a process. Raises: as `find_devkit_source`."""
    return pack_wheel(_get_distribution())


def _get_distribution() -> Distribution:
    try:
        return distribution(DISTRIBUTION)
    except PackageNotFoundError:
        raise DevkitError(
            f"devkit is running from a checkout that is not installed, so it cannot build the {DISTRIBUTION} package for the image",
            "Install this checkout first: pip install --editable .",
        ) from None


def parse_direct_url(direct_url: dict[str, dict[str, str] | str]) -> FromUrl | None:
    """Return the URL in a PEP 610 record when another machine can use it; None for a local folder or file."""
    url = str(direct_url["url"])
    parts = urlsplit(url)
    user, _, host = parts.netloc.rpartition("@")
    if user != "git":  # every forge's public SSH user, not a secret
        url = urlunsplit(parts._replace(netloc=host))
    if url.startswith("file:"):
        return None
    vcs = direct_url.get("vcs_info")
    if isinstance(vcs, dict):
        return FromUrl(f"{vcs['vcs']}+{url}@{vcs['commit_id']}")
    archive = direct_url.get("archive_info")
    digest = archive.get("hash", "") if isinstance(archive, dict) else ""
    return FromUrl(f"{url}#{digest}" if digest else url)


def pack_wheel(installed: Distribution) -> FromWheel:
    """Pack a pure Python wheel of devkit as it is installed, with its templates and version tables."""
    name = DISTRIBUTION.replace("-", "_")
    metadata = f"{name}-{__version__}.dist-info"
    # An editable install keeps the metadata of the day it was made.
    lines = (installed.read_text("METADATA") or "").splitlines()
    lines = [f"Version: {__version__}" if line.startswith("Version: ") else line for line in lines]
    members = {f"devkit/{path}": content for path, content in _read_tree(PACKAGE)}
    members |= {f"devkit/templates/{path}": content for path, content in _read_tree(find_templates())}
    members[f"{metadata}/METADATA"] = "\n".join([*lines, ""]).encode()
    members[f"{metadata}/WHEEL"] = _WHEEL_TEXT.encode()
    members[f"{metadata}/entry_points.txt"] = b"[console_scripts]\ndevkit = devkit.__main__:start\n"
    record = []
    for path, content in sorted(members.items()):
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        record.append(f"{path},sha256={digest},{len(content)}")
    members[f"{metadata}/RECORD"] = "\n".join([*record, f"{metadata}/RECORD,,", ""]).encode()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for path, content in sorted(members.items()):
            entry = zipfile.ZipInfo(path, date_time=_EARLIEST)
            entry.external_attr = 0o644 << 16
            entry.create_system = 3
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(
                entry, content, compresslevel=1
            )  # one build reads it, and every `init` and `update` packs it
    return FromWheel(f"{name}-{__version__}-py3-none-any.whl", buffer.getvalue())


def _read_tree(root: Path) -> Iterator[tuple[str, bytes]]:
    for path in root.rglob("*"):
        if path.is_file() and path.suffix not in (".pyc", ".pyo"):
            yield path.relative_to(root).as_posix(), path.read_bytes()


FEATURE_ID = "devkit"
START_SCRIPT = "/usr/local/share/devkit/start.sh"
_EXECUTABLE = 0o755

_OPTIONS = {
    "check": {
        "type": "boolean",
        "default": True,
        "description": "Run `devkit doctor` each time the container starts; it never prevents the container from starting.",
    },
    "index": {
        "type": "string",
        "default": "",
        "description": "Package index for devkit's own requirements. If empty, PyPI or the index configured for pip is used.",
    },
}


def render_devcontainer_feature(wheel: FromWheel) -> Iterator[Artifact]:
    """Render the Feature's folder, named by its id."""
    metadata = {
        "id": FEATURE_ID,
        "version": __version__,
        "name": "devkit: diagnosis and proof of GPU dev containers",
        "description": "Reports at every start whether the GPU works in this container and, if not, the cause and the fix.",
        "documentationURL": f"{DOCUMENTATION_URL}/guides/dev-container/",
        "options": _OPTIONS,
        # No installsAfter: the dev container CLI would ask ghcr.io for each, and fail where that is not reachable.
        "postStartCommand": START_SCRIPT,
    }
    install = render_template("feature/install.sh.j2", folder=IMAGE_ENVIRONMENT, script=START_SCRIPT)
    yield Artifact.from_text(f"{FEATURE_ID}/devcontainer-feature.json", json.dumps(metadata, indent=4) + "\n")
    yield Artifact.from_text(f"{FEATURE_ID}/install.sh", install, mode=_EXECUTABLE)
    yield Artifact(f"{FEATURE_ID}/{wheel.filename}", wheel.content)
