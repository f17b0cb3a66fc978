"""Lint what `devkit init` writes: hadolint, shellcheck, the dev container schema, the Compose schema, Compose itself.

DEVKIT_SCHEMAS names a folder with devContainer.base.schema.json; without it that one check is left out, and said so.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

BIN = Path(sys.executable).parent
PLANS = {
    "cpu": ["--vendor", "cpu"],
    "one consumer GPU": ["--gpu", "RTX 4090", "--driver", "580.65.06"],
    "eight data-centre GPUs": ["--gpu", "H100", "--driver", "570.124.06"],
}
OVERLAYS = ("cpu", "nvidia", "cdi", "podman")


def commands(project: Path) -> Iterator[tuple[list[str], dict[str, str]]]:
    """Every linter call for one project, with the environment it adds."""
    folder = project / ".devcontainer"
    compose = folder / "docker-compose.yml"
    yield [str(BIN / "hadolint"), str(folder / "Dockerfile")], {}
    for script in sorted(folder.glob("*.sh")):
        yield [str(BIN / "shellcheck"), str(script)], {}
    checker = str(BIN / "check-jsonschema")
    yield [checker, "--builtin-schema", "vendor.compose-spec", *map(str, sorted(folder.glob("*.yml")))], {}
    if schemas := os.environ.get("DEVKIT_SCHEMAS"):
        schema = Path(schemas) / "devContainer.base.schema.json"
        yield [checker, "--schemafile", str(schema), str(folder / "devcontainer.json")], {}
    if has_compose():
        for overlay in OVERLAYS:
            if (folder / f"gpu.{overlay}.yml").exists():
                yield ["docker", "compose", "--file", str(compose), "config", "--quiet"], {"DEVKIT_GPU": overlay}


def has_compose() -> bool:
    """Whether `docker compose` is installed; no engine is needed."""
    if shutil.which("docker") is None:
        return False
    return subprocess.run(["docker", "compose", "version"], capture_output=True, check=False).returncode == 0


def wrong(argv: list[str], env: dict[str, str]) -> bool:
    """Run one command; show what it said when it fails."""
    done = subprocess.run(argv, env=os.environ | env, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.stderr.write(f"{' '.join(argv)}\n{done.stdout}{done.stderr}\n")
    return done.returncode != 0


def main() -> int:
    """1 when a linter objects to any of the plans' files."""
    for name, missing in (
        ("the dev container schema: DEVKIT_SCHEMAS is not set", not os.environ.get("DEVKIT_SCHEMAS")),
        ("docker compose config: the Compose plugin is not installed", not has_compose()),
    ):
        if missing:
            sys.stderr.write(f"    LEFT OUT: {name}\n")
    failures = 0
    with tempfile.TemporaryDirectory() as scratch:
        for name, flags in PLANS.items():
            project = Path(scratch) / name.replace(" ", "-")
            init = [sys.executable, "-m", "devkit", "init", str(project), "--torch", "2.13.0", *flags, "--yes"]
            if wrong(init, {}):
                failures += 1
                continue
            failures += sum(wrong(argv, env) for argv, env in commands(project))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
