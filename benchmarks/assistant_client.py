"""Twenty broken projects, repaired by a scripted MCP client through the tools of `devkit mcp` alone.

Ten are of public issue threads (assistant_client.toml); ten are what `devkit init` writes for examples/quickstart, each with
a mistake drawn by a seed. The client reads no file and knows no fault: it follows the tools' answers.
"""

import argparse
import asyncio
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.types import ElicitResult
from ruamel.yaml import YAML, YAMLError

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.machine import record, versions
from devkit.facts.store import format_facts
from tests.hosts import facts_of

NAME, SEED, MUTANTS, MACHINE = "assistant_client", 35, 10, "ubuntu-4090-ok"
CASES: dict[str, dict[str, str]] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())
LIST = {"requirements.txt": "torch\n"}
"""What a project without a list of its own gets, because init plans for a project."""
EXAMPLE = Path(__file__).resolve().parents[1] / "examples/quickstart"
FOLDER = ".devcontainer"
MUTATED = ("Dockerfile", "docker-compose.yml", "devcontainer.json")
MISTAKES = {
    "drop": r".+\n",
    "swap": r"[A-Za-z]{4,}",
    "quote": r"(?<=: )(true|false|\d+)\b",
    "sign": r"[\]})\"\\]",
    "path": r"\w+\.\w+",
}
COMPOSE_OFFER = re.compile(r"devkit init --compose (\S+)(?: --service (\S+?))?(?=[\"\s])")
Files = dict[str, bytes]


@dataclass(frozen=True)
class Shape:
    """A project as programs other than devkit read it: what they refuse, its dev container, and the merged service."""

    files: Files
    rejected: list[str]
    dev: dict[str, Any]
    service: dict[str, Any]

    def list_requests(self) -> list[dict[str, Any]]:
        """List the device requests of the service."""
        reserved = self.service.get("deploy", {}).get("resources", {}).get("reservations", {}).get("devices", [])
        return [*reserved, *self.service.get("gpus", [])]

    def has(self, path: str, text: str) -> bool:
        """Return True for a file with this text."""
        return text.encode() in self.files.get(path, b"")


def counts(request: dict[str, Any]) -> bool:
    """Return True for a device request that says which or how many."""
    return "count" in request or "device_ids" in request


RIGHT: dict[str, Callable[[Shape], object]] = {
    "gpu-commented-out": lambda it: it.dev.get("hostRequirements") or "--gpus" in str(it.dev.get("runArgs")),
    "gpu-object-without-comma": lambda it: {*it.dev["hostRequirements"]["gpu"]} == {"cores", "memory"},
    "devices-below-limits": lambda it: it.service,
    "capabilities-without-gpu": lambda it: any(
        "gpu" in each["capabilities"] and counts(each) for each in it.list_requests()
    ),
    "base-image-removed": lambda it: it.has(f"{FOLDER}/Dockerfile", "FROM") or not it.has("Dockerfile", "10.2-"),
    "compose-for-podman": lambda it: it.has("compose.yaml", CASES["compose-for-podman"]["compose.yaml"]),
    "shared-memory": lambda it: "shm_size" in it.service or it.service.get("ipc") == "host",
    "image-torch-replaced": lambda it: not it.has("Dockerfile", "uninstall") or it.has("Dockerfile", "torch=="),
    "service-misnamed": lambda it: it.dev["service"] == "dashboard" and it.service,
    "count-missing": lambda it: it.list_requests() and all(map(counts, it.list_requests())),
}
"""Case -> what must hold of it in the end, written before the first run."""


def mutate(text: str, chance: random.Random) -> str:
    """Make one mistake: a line dropped, letters swapped, a value quoted, a sign lost, or a path bent."""
    while True:
        kind = chance.choice(list(MISTAKES))
        found = chance.choice([*re.finditer(MISTAKES[kind], text)] or [re.search("", text)])
        line = text[text.rfind("\n", 0, found.start()) + 1 : found.end()].lstrip()
        new = {
            "swap": found[0][:1] + found[0][1:3][::-1] + found[0][3:],
            "quote": f'"{found[0]}"',
            "path": f"missing-{found[0]}",
        }
        changed = text[: found.start()] + new.get(kind, "") + text[found.end() :]
        if changed != text and not line.startswith(("#", "//")):
            return changed


def make_mutants(folder: Path) -> dict[str, tuple[Files, Files]]:
    """Return the projects by name, each as it was and with its mistake."""
    shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns("expected"))
    subprocess.run([sys.executable, "-P", "-m", "devkit", "init", str(folder), "--yes", "--no-resolve"], check=True)
    whole, chance, found = read_files(folder), random.Random(SEED), {}
    for number in range(MUTANTS):
        path = f"{FOLDER}/{chance.choice(MUTATED)}"
        found[f"mutant-{number}-{path[14:]}"] = whole, {**whole, path: mutate(whole[path].decode(), chance).encode()}
    return found


def read_files(folder: Path) -> Files:
    """Read every file of a project."""
    return {str(each.relative_to(folder)): each.read_bytes() for each in sorted(folder.rglob("*")) if each.is_file()}


def inspect_project(folder: Path, compose: str) -> Shape:
    """Read a project with other programs: a JSON parser, a YAML parser, hadolint and Docker Compose."""
    files, rejected, dev, services = read_files(folder), [], {}, {}
    for path, content in files.items():
        try:
            if path.endswith("devcontainer.json"):
                plain = re.sub(r'("(?:\\.|[^"\\])*")|//[^\n]*', lambda found: found[1] or "", content.decode())
                dev = json.loads(re.sub(r",(\s*[\]}])", r"\1", plain))
            elif path.endswith((".yml", ".yaml")):
                list(YAML(typ="safe").parse(content.decode()))  # Compose has tags, such as !reset
            elif path.endswith("Dockerfile"):
                hadolint = [Path(sys.executable).with_name("hadolint"), "--no-fail", "--format=json", folder / path]
                said = subprocess.run(hadolint, capture_output=True, text=True, check=True).stdout
                rejected += [path] if "DL1000" in said else []
        except (ValueError, YAMLError):
            rejected.append(path)
    named = dev.get("dockerComposeFile", [])
    paths = [folder / FOLDER / each for each in ([named] if isinstance(named, str) else named)]
    if paths := paths or [folder / each for each in ("compose.yaml", "docker-compose.yml") if each in files]:
        words = [compose, *(f"--file={each}" for each in paths), "config", "--format=json"]
        done = subprocess.run(
            words, capture_output=True, text=True, check=False, env={**os.environ, "COMPOSE_PROFILES": "*"}
        )
        services = json.loads(done.stdout)["services"] if done.returncode == 0 else {}
        rejected += [] if done.returncode == 0 else ["docker compose config"]
    return Shape(files, rejected, dev, services.get(dev.get("service") or next(iter(services), ""), {}))


class Assistant:
    """The scripted client: it calls tools, counts the calls, and keeps the names of the files that it was shown."""

    def __init__(self, client: Client) -> None:
        self.client, self.calls, self.shown = client, 0, set[str]()

    async def call(self, tool: str, **arguments: object) -> dict[str, Any]:
        """Call a tool. Returns its document, {} for an error."""
        self.calls += 1
        result = await self.client.call_tool(tool, arguments)
        return {} if result.is_error else dict(result.structured_content or {})

    async def apply(self, proposal: dict[str, Any]) -> None:
        """Have the changes of a proposal made, if it has any."""
        if "token" in proposal:
            self.shown |= {each["path"] for each in proposal["files"] if each.get("action") != "unchanged"}
            await self.call("apply_fix", token=proposal["token"])

    async def check(self) -> tuple[set[str], str]:
        """Return the codes of the project's problems and warnings, and the whole answer as text."""
        document = await self.call("check_project")
        findings = [(each["code"], found["severity"]) for each in document["outcomes"] for found in each["findings"]]
        return {code for code, severity in findings if severity != "note"}, json.dumps(document)

    async def repair(self) -> tuple[set[str], set[str]]:
        """Repair the project. Returns the codes of its problems before and after."""
        found, said = await self.check()
        await self.apply(await self.call("propose_fix"))
        offer = COMPOSE_OFFER.search(said)
        preview = await self.call("preview_init", **({"compose": offer[1], "service": offer[2]} if offer else {}))
        await self.apply(preview)
        left, _ = await self.check()
        if left or not preview or not self.shown:
            # The user says that it is broken: what devkit wrote may be written again.
            await self.apply(await self.call("preview_init", force=True))
            left, _ = await self.check()
        return found, left


async def measure(folder: Path, right: Callable[[Shape], object], compose: str, facts: list[str]) -> dict[str, Any]:
    """Repair one project, and judge what became of it."""
    before = inspect_project(folder, compose)
    words = ["-P", "-m", "devkit", "mcp", f"--project={folder}", *facts]
    server = StdioServerParameters(command=sys.executable, args=words, env=dict(os.environ), cwd=str(folder))

    async def agree(_context: object, _params: object) -> ElicitResult:
        return ElicitResult(action="accept", content={"confirmed": True})

    async with Client(stdio_client(server), elicitation_callback=agree) as client:
        assistant = Assistant(client)
        found, left = await assistant.repair()
    after = inspect_project(folder, compose)
    changed = {path for path in {*before.files, *after.files} if before.files.get(path) != after.files.get(path)}
    worse = [f"changed without a diff: {path}" for path in sorted(changed - assistant.shown)]
    worse += [f"rejected now: {each}" for each in after.rejected if each not in before.rejected]
    worse += [f"found now: {code}" for code in sorted(left - found)]
    try:
        repaired = not after.rejected and bool(right(after))
    except (KeyError, TypeError):
        repaired = False
    row = {"calls": assistant.calls, "repaired": repaired, "worse": worse, "found": sorted(found), "left": sorted(left)}
    return row | {"changed": sorted(changed), "rejected": after.rejected}


def main() -> int:
    """Repair the twenty projects and print a row for each; 1 where one is worse."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--compose", default="docker-compose", help="Docker Compose as a program")
    parser.add_argument("--only", default="", help="projects whose name contains this")
    parser.add_argument("--record", action="store_true")
    options, rows = parser.parse_args(), []
    with tempfile.TemporaryDirectory() as scratch:
        saved = Path(scratch, "facts.json")
        saved.write_text(format_facts(facts_of(MACHINE)))
        encoded = {
            name: {path: text.encode() for path, text in {**LIST, **case}.items()} for name, case in CASES.items()
        }
        projects = {name: (files, RIGHT[name], [f"--facts={saved}"]) for name, files in encoded.items()}
        for name, (whole, broken) in make_mutants(Path(scratch, "example")).items():
            projects[name] = broken, lambda it, whole=whole: it.files == whole, []
        for name, (files, right, facts) in projects.items():
            if options.only in name:
                for path, content in files.items():
                    Path(scratch, name, path).parent.mkdir(parents=True, exist_ok=True)
                    Path(scratch, name, path).write_bytes(content)
                rows.append({"name": name} | asyncio.run(measure(Path(scratch, name), right, options.compose, facts)))
                print(json.dumps(rows[-1]), flush=True)
    totals = {"repaired": sum(row["repaired"] for row in rows), "worse": sum(bool(row["worse"]) for row in rows)}
    print(f"{len(rows)} projects, {sum(row['calls'] for row in rows)} calls, {totals}")
    if options.record:
        record(NAME, {"versions": versions("devkit-gpu", "mcp"), "seed": SEED, **totals, "rows": rows})
    return int(totals["worse"] > 0)


if __name__ == "__main__":
    sys.exit(main())
