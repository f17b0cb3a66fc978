"""The base image, made by mmdebstrap: no image registry is asked.

The dev container's Dockerfile names an image such as python:3.11-slim-bookworm. The engine takes a local image of
that name before it asks a registry, so the generated files are built unchanged.
"""

import re
from pathlib import Path

from .cache import CACHE, made_once, step
from .commands import run
from .daemon import Engine

MIRROR = "http://deb.debian.org/debian"
INCLUDE = "python3,python3-venv,python3-dev,python3-pip,ca-certificates"
BOOTSTRAP = (
    "mmdebstrap",
    "--quiet",
    "--mode=root",
    "--variant=minbase",
    "--format=directory",
    "--hook-dir=/usr/share/mmdebstrap/hooks/maybe-merged-usr",
    "--dpkgopt=force-unsafe-io",
    '--aptopt=Acquire::Languages "none"',
)
"""Both settings stay in the image, as in the official ones; without the hook a package that needs Perl merges /usr."""
SUITE = "bookworm"
"""Its python3 is 3.11, the version that the tests' plans ask for."""

LEFT_OUT = (
    "dev/*",
    "var/lib/apt/lists/*",
    "usr/share/doc/*",
    "usr/share/locale/*",
    "usr/share/man/*",
    "usr/lib/python3*/config-*/*.a",
)
"""What the official slim images do not hold either; every import and export of the image would handle it."""

TAKEN_UID = 1000
BASE = "devkit-test-base:latest"
"""What this file imports; all other names are tags of it."""
PREPARED = "devkit-test-prepared:latest"


def archive() -> Path:
    """The root file system as a tar file, cached."""
    return made_once(f"rootfs-{SUITE}", _bootstrap) / "rootfs.tar"


def _bootstrap(folder: Path) -> None:
    root = folder / "root"
    install(SUITE, INCLUDE, root)
    local = root / "usr/local/bin"
    for link, target in (
        ("python3", "/usr/bin/python3"),
        ("python", "python3"),
        ("pip3", "/usr/bin/pip3"),
        ("pip", "pip3"),
    ):
        (local / link).symlink_to(target)
    # The official image's pip may install outside a venv; Debian's marker would forbid it.
    for marker in root.glob("usr/lib/python3.*/EXTERNALLY-MANAGED"):
        marker.unlink()
    left_out = [f"--exclude=./{path}" for path in LEFT_OUT]
    run(["tar", "--numeric-owner", "--one-file-system", *left_out, "-C", root, "-cf", folder / "rootfs.tar", "."])
    run(["rm", "-rf", "--one-file-system", root])


def install(suite: str, packages: str, root: Path) -> None:
    """Put a small Debian with these packages into a folder that does not exist yet."""
    run([*BOOTSTRAP, f"--include={packages}", suite, root, MIRROR], deadline_s=900)


def base_image_of(dockerfile: Path) -> str:
    """The image that the first FROM names, with ARG defaults put in."""
    text = dockerfile.read_text(encoding="utf-8")
    arguments = dict(re.findall(r"^ARG\s+(\w+)=\"?([^\"\s]+)\"?", text, re.MULTILINE))
    found = re.search(r"^FROM\s+(?:--\S+\s+)*(\S+)", text, re.MULTILINE)
    assert found, f"{dockerfile} has no FROM"
    return re.sub(r"\$\{?(\w+)\}?", lambda match: arguments[match[1]], found[1])


def provide(engine: Engine, reference: str) -> None:
    """Give the engine the base image under `reference`, unless it has it."""
    labels = '{{index .Config.Labels "devkit.test.base"}}'
    # The label tells it from the image of an interrupted test that took the name.
    found = run(["docker", "image", "inspect", "--format", labels, reference], env=engine.env, expect=None)
    if found.stdout.strip() == SUITE:
        return
    if reference != BASE:
        provide(engine, BASE)
        engine.docker("tag", BASE, reference)
        return
    with step("import the base image"):
        changes = ["--change", 'CMD ["python3"]', "--change", f"LABEL devkit.test.base={SUITE}"]
        engine.docker("import", *changes, archive(), BASE)


def prepared(engine: Engine, context: Path) -> Path:
    """The base image with the packages of a generated Dockerfile's first stage, as an archive made by any engine."""

    def make(folder: Path) -> None:
        engine.docker("build", "--target", "prepared", "--tag", PREPARED, context)
        engine.docker("save", "--output", folder / "image.tar", PREPARED)

    return made_once(f"prepared-{SUITE}", make) / "image.tar"


def provide_prepared(engine: Engine, reference: str, context: Path) -> None:
    """Give the engine that image under `reference`: what another engine fetched is not fetched again."""
    if not engine.docker("image", "ls", "--quiet", PREPARED).strip():
        if not (CACHE / f"prepared-{SUITE}").exists():
            provide(engine, reference)
        archive = prepared(engine, context)
        with step("load the prepared image"):
            engine.docker("load", "--input", archive)
    engine.docker("tag", PREPARED, reference)


def provide_with_user(engine: Engine, reference: str, *, user: str, on: str = BASE, uid: int = TAKEN_UID) -> None:
    """The image `on` with one more user, such as Ubuntu's `ubuntu`, who holds UID 1000 already."""
    provide(engine, BASE)
    name = f"devkit-test-{user}-{uid}"
    script = f"groupadd --gid {uid} {user} && useradd --uid {uid} --gid {uid} --create-home {user}"
    engine.docker("run", "--name", name, on, "sh", "-c", script)
    changes = ["--change", 'CMD ["python3"]', "--change", f"LABEL devkit.test.base={user}"]
    engine.docker("commit", *changes, name, reference)
    engine.docker("rm", name)
