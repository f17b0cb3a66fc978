"""Lint what `devkit init` writes: hadolint, shellcheck, the dev container schema, the Compose schema, Compose itself.

A few projects, through the command line and with the versions of today's tables. tests/render/test_matrix.py and
tests/engine/test_matrix.py look at every combination.

DEVKIT_SCHEMAS names a folder with devContainer.base.schema.json; without it that one check is left out, and said so.
Compose is this machine's, else the one that the engine tests fetch.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.engine import binaries

BIN = Path(sys.executable).parent
PLANS = {
    "cpu": ["--vendor", "cpu"],
    "one consumer GPU": ["--gpu", "RTX 4090", "--driver", "580.65.06"],
    "eight data-center GPUs": ["--gpu", "H100", "--driver", "570.124.06"],
    "every editor": ["--vendor", "cpu", "--set", "editors=vscode,jetbrains,codespaces,devpod,coder,daytona"],
}


def commands(project: Path, compose: list[str]) -> Iterator[tuple[list[str], dict[str, str]]]:
    """Every linter call for one project, with the environment it adds."""
    folder = project / ".devcontainer"
    yield [str(BIN / "hadolint"), str(folder / "Dockerfile")], {}
    for script in sorted(folder.rglob("*.sh")):
        yield [str(BIN / "shellcheck"), str(script)], {}
    checker = str(BIN / "check-jsonschema")
    yield [checker, "--builtin-schema", "vendor.compose-spec", *map(str, sorted(folder.glob("*.yml")))], {}
    if schemas := os.environ.get("DEVKIT_SCHEMAS"):
        schema = Path(schemas) / "devContainer.base.schema.json"
        yield [checker, "--schemafile", str(schema), str(folder / "devcontainer.json")], {}
    if compose:
        config = [*compose, "--file", str(folder / "docker-compose.yml"), "config", "--quiet"]
        yield config, {}
        (modes,) = re.findall(r"^# .* DEVKIT_GPU=(\S+)$", (folder / "gpu.sh").read_text(encoding="utf-8"), re.MULTILINE)
        for mode in modes.split("|"):
            yield ["sh", str(folder / "gpu.sh")], {"DEVKIT_GPU": mode}
            yield config, {}


def compose_command() -> list[str]:
    """How to run Compose here, [] when there is none. It needs no engine to check a file."""
    docker = shutil.which("docker")
    if docker and subprocess.run([docker, "compose", "version"], capture_output=True, check=False).returncode == 0:
        return [docker, "compose"]
    try:
        return [str(binaries.find().plugins / "docker-compose")]
    except binaries.NoEngineError as error:
        sys.stderr.write(f"    LEFT OUT: docker compose config: {error}\n")
        return []


def wrong(argv: list[str], env: dict[str, str]) -> bool:
    """Run one command; show what it said when it fails."""
    done = subprocess.run(argv, env=os.environ | env, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.stderr.write(f"{' '.join(argv)}\n{done.stdout}{done.stderr}\n")
    return done.returncode != 0


def main() -> int:
    """1 when a linter objects to any of the plans' files."""
    if not os.environ.get("DEVKIT_SCHEMAS"):
        sys.stderr.write("    LEFT OUT: the dev container schema: DEVKIT_SCHEMAS is not set\n")
    compose = compose_command()
    failures = int(not compose and os.environ.get("CI") == "true")
    with tempfile.TemporaryDirectory() as scratch:
        for name, flags in PLANS.items():
            project = Path(scratch) / name.replace(" ", "-")
            init = [
                sys.executable,
                "-m",
                "devkit",
                "init",
                str(project),
                "--torch",
                "2.13.0",
                *flags,
                "--no-resolve",
                "--yes",
            ]
            if wrong(init, {}):
                failures += 1
                continue
            failures += sum(wrong(argv, env) for argv, env in commands(project, compose))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
