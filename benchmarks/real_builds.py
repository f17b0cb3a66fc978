"""Build the dev containers of public repositories on a real Docker Engine, open them with the dev container CLI, run their first step.

    python -m benchmarks.real_builds FOLDER NAME… [--record]      (FOLDER/OWNER+NAME are clones; root on Linux, as for tests/engine)

The rows of real_repositories.toml with `inside` are built. No image registry is asked: a Debian or Ubuntu with the same Python has
the name of the planned base image. torch comes from the package index, whose build must be the planned one: hence `build_options`.
No GPU is here, so the container starts in its form for the CPU; what is proved is that it builds, opens and finds its packages.
"""

import argparse
import functools
import hashlib
import json
import re
import shutil
import sys
import tempfile
import threading
import time
import tomllib
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from benchmarks.machine import record_rows, versions
from benchmarks.real_repositories import REPOSITORIES
from tests.engine import authority, binaries, cache, daemon, image, network, package_index, tools
from tests.engine.commands import CommandError, run

SUITES = {"3.10": "jammy", "3.11": "bookworm", "3.12": "noble", "3.13": "trixie"}
"""The release whose python3 is the planned one."""
UBUNTU = "http://archive.ubuntu.com/ubuntu"
UBUNTU_KEYRING = "pool/main/u/ubuntu-keyring/ubuntu-keyring_2023.11.28.1_all.deb"
UBUNTU_KEYRING_SHA256 = "36de43b15853ccae0028e9a767613770c704833f82586f28eb262f0311adb8a8"
KEYS = "usr/share/keyrings/ubuntu-archive-keyring.gpg"
PYPI = "https://pypi.org/simple"
PACKAGES = "python3,python3-venv,python3-dev,python3-pip,ca-certificates"


def provide(engine: daemon.Engine, reference: str, python: str) -> None:
    """Give the engine a Debian or Ubuntu with that Python under the name of the base image."""
    suite = SUITES[python]
    stand_in = f"devkit-real-{suite}:3"
    if not engine.docker("image", "ls", "--quiet", stand_in).strip():
        folder = cache.made_once(f"real-{suite}", lambda folder: _bootstrap(suite, folder))
        engine.docker("import", "--change", 'CMD ["python3"]', folder / "rootfs.tar", stand_in)
    engine.docker("tag", stand_in, reference)


class _TorchIndex(SimpleHTTPRequestHandler):
    """torch's index as far as it can be had here: its wheel for the CPU, and for CUDA what the public index has."""

    def do_GET(self) -> None:
        """Answer with a page or file of the folder, or point to the public index."""
        name = self.path.strip("/").rpartition("/")[2]
        if Path(self.translate_path(self.path)).exists():
            super().do_GET()
            return
        self.send_response(302)
        self.send_header("Location", f"{PYPI}/{name}/")
        self.end_headers()

    def log_message(self, format: str, *words: object) -> None:
        """Stay quiet."""


@contextmanager
def serving() -> Iterator[str]:
    """The address of torch's index for builds."""
    with tempfile.TemporaryDirectory(prefix="devkit-index-") as pages:
        wheels = sorted(tools.wheelhouse([f"torch=={tools.TORCH}"]).glob("torch-*.whl"))
        package_index.write_index(Path(pages), "cpu", wheels)
        server = ThreadingHTTPServer((package_index.HOST, 0), functools.partial(_TorchIndex, directory=pages))
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://{package_index.HOST}:{server.server_address[1]}"
        finally:
            server.shutdown()


def _fetch_keyring(folder: Path) -> None:
    """Fetch Ubuntu's keys, which Debian does not have."""
    with urllib.request.urlopen(f"{UBUNTU}/{UBUNTU_KEYRING}", timeout=60) as answer:
        content = answer.read()
    if hashlib.sha256(content).hexdigest() != UBUNTU_KEYRING_SHA256:
        raise CommandError(f"{UBUNTU_KEYRING} is not the file that it was")
    package = folder / "keyring.deb"
    package.write_bytes(content)
    run(["dpkg-deb", "--extract", package, folder])


def _bootstrap(suite: str, folder: Path) -> None:
    root = folder / "root"
    if suite in ("bookworm", "trixie"):
        image.install(suite, PACKAGES, root)
    else:
        signed = f"[signed-by={cache.made_once('ubuntu-keyring', _fetch_keyring) / KEYS}]"
        pockets = [f"deb {signed} {UBUNTU} {suite}{pocket} main universe" for pocket in ("", "-updates")]
        # Their /usr is merged by their own packages.
        bootstrap = [word for word in image.BOOTSTRAP if not word.startswith("--hook-dir")]
        run([*bootstrap, f"--include={PACKAGES},apt,ubuntu-keyring", suite, root, *pockets], deadline_s=900)
        lines = "".join(f"{each.replace(f'{signed} ', '')}\n" for each in pockets)
        (root / "etc/apt/sources.list").write_text(lines)
        shutil.rmtree(root / "etc/apt/sources.list.d", ignore_errors=True)
    for link, target in (
        ("python3", "/usr/bin/python3"),
        ("python", "python3"),
        ("pip3", "/usr/bin/pip3"),
        ("pip", "pip3"),
    ):
        (root / "usr/local/bin" / link).symlink_to(target)
    for marker in root.glob("usr/lib/python3.*/EXTERNALLY-MANAGED"):
        marker.unlink()
    run(["tar", "--numeric-owner", "--one-file-system", "-C", root, "-cf", folder / "rootfs.tar", "."])
    shutil.rmtree(root)


def build(
    engine: daemon.Engine, cli: Path, certificate: Path, repository: dict[str, Any], source: Path
) -> dict[str, Any]:
    """Write, build, open and try one repository's dev container; what happened, with the seconds of each part."""
    row: dict[str, Any] = {"name": repository["name"], "commit": repository["commit"]}
    scratch = Path(tempfile.mkdtemp(prefix="devkit-real-"))
    root = scratch / source.name.partition("+")[2].lower().replace(".", "-")
    shutil.copytree(source, root, symlinks=True)
    options = [
        *repository.get("options", []),
        *repository.get("build_options", []),
        "--ca-certificate",
        certificate,
        "--yes",
    ]
    try:
        started = time.monotonic()
        run([sys.executable, "-m", "devkit", "init", root, *options], deadline_s=120)
        # As a developer's clone is: the user in the container has the same ID.
        run(["chown", "--recursive", "1000:1000", root])
        row["init_s"] = round(time.monotonic() - started, 1)
        dockerfile = (root / ".devcontainer/Dockerfile").read_text()
        base = image.base_image_of(root / ".devcontainer/Dockerfile")
        python = re.search(r"sys\.version_info\[:2\] == \((\d+), (\d+)\)", dockerfile)
        provide(engine, base, f"{python[1]}.{python[2]}" if python else "3.12")
        row["base_image"] = base
        path = f"{cli}:{engine.env['PATH']}" if "PATH" in engine.env else str(cli)
        words = engine.on_host("devcontainer", "up", "--workspace-folder", root)
        started = time.monotonic()
        done = run(words, env={**engine.env, "PATH": path}, cwd=root, deadline_s=3600, expect=None)
        row["up_s"] = round(time.monotonic() - started, 1)
        last = (done.stdout.strip().splitlines() or ["{}"])[-1]
        row["outcome"] = json.loads(last).get("outcome", "none") if last.startswith("{") else "none"
        if row["outcome"] != "success":
            row["log"] = (done.stdout + done.stderr)[-6000:]
            return row
        words = engine.on_host(
            "devcontainer", "exec", "--workspace-folder", root, "sh", "-c", str(repository["inside"])
        )
        done = run(words, env={**engine.env, "PATH": path}, cwd=root, deadline_s=900, expect=None)
        row["inside"] = {
            "command": repository["inside"],
            "exit": done.returncode,
            "end": (done.stdout + done.stderr)[-600:],
        }
    except CommandError as error:
        row["error"] = str(error)[-3000:]
    finally:
        engine.clear()
        # An image with CUDA takes ten gigabytes, and its layers as many again.
        if built := engine.docker("image", "ls", "--quiet", "--filter", "reference=*-dev").split():
            engine.docker("image", "rm", "--force", *built)
        engine.docker("builder", "prune", "--force", "--all", "--filter", "type=regular")
        shutil.rmtree(scratch, ignore_errors=True)
    return row


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--record", action="store_true", help="add the rows to results/real_builds.json")
    parser.add_argument("--list", type=Path, default=REPOSITORIES)
    options = parser.parse_args()
    rows = [row for row in tomllib.loads(options.list.read_text())["repository"] if "inside" in row]
    rows = [row for row in rows if not options.names or any(name in row["name"] for name in options.names)]
    cli, certificate = tools.devcontainer_cli(), authority.provide().bundle
    done = []
    with (
        cache.only_one(),
        network.bridged(),
        serving() as index,
        daemon.engine(binaries.find(), daemon.Flavor.CPU) as engine,
    ):
        for row in rows:
            row["build_options"] = [*row.get("build_options", []), "--torch-index", index]
            result = build(engine, cli, certificate, row, options.folder / row["name"].replace("/", "+"))
            done.append({**result, "engine": engine.versions})
            print(json.dumps(result, indent=1), flush=True)
            if options.record:
                record_rows("real_builds", done, {"versions": versions("devkit-gpu", "uv")})
    works = sum(row.get("inside", {}).get("exit") == 0 for row in done)
    print(f"{works} of {len(done)} open and run their first step")
    return 0 if works == len(done) else 1


if __name__ == "__main__":
    sys.exit(main())
