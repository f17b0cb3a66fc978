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
from pathlib import Path
from typing import Any

from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.types import ElicitResult
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.machine import record, versions
from devkit.facts.model import format_facts
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


def inspect_project(folder: Path, compose: str) -> tuple[list[str], str]:
    """Read a project as other programs do, on a host whose engine has the nvidia runtime.

    Returns what they refuse, and a text of devcontainer.json, the merged service and the Dockerfiles.
    """
    rejected, dev, services, dockerfiles = [], {}, {}, []
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(shutil.copytree(folder, Path(scratch, folder.name)))
        for script in root.rglob("gpu.sh"):
            subprocess.run(["sh", script], capture_output=True, check=True, env={**os.environ, "DEVKIT_GPU": "nvidia"})
        for path in root.rglob("*"):
            try:
                if path.name == "devcontainer.json":
                    plain = re.sub(r'("(?:\\.|[^"\\])*")|//[^\n]*', lambda found: found[1] or "", path.read_text())
                    dev = json.loads(re.sub(r",(\s*[\]}])", r"\1", plain))
                elif path.suffix in (".yml", ".yaml"):
                    list(YAML(typ="safe").parse(path.read_text()))  # Compose has tags, such as !reset
                elif path.name == "Dockerfile":
                    dockerfiles.append(path.read_text())
                    hadolint = [Path(sys.executable).with_name("hadolint"), "--no-fail", path]
                    said = subprocess.run(hadolint, capture_output=True, text=True, check=True).stdout
                    rejected += [path.name] if "DL1000" in said else []
            except (ValueError, YAMLError):
                rejected.append(path.name)
        named = dev.get("dockerComposeFile", [])
        paths = [root / FOLDER / each for each in ([named] if isinstance(named, str) else named)]
        paths = paths or [root / each for each in ("compose.yaml", "docker-compose.yml") if (root / each).exists()]
        if paths:
            words = [compose, *(f"--file={each}" for each in paths), "config", "--format=json"]
            done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=root)
            services = json.loads(done.stdout)["services"] if done.returncode == 0 else {}
            rejected += [] if done.returncode == 0 else ["docker compose config"]
            if services and dev and dev.get("service") not in services:
                rejected.append("service of devcontainer.json")
    service = services.get(dev.get("service") or next(iter(services), ""), {})
    return sorted(rejected), "\n".join((json.dumps(dev), json.dumps(service), *dockerfiles))


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


async def measure(folder: Path, compose: str, facts: list[str]) -> tuple[dict[str, Any], str]:
    """Repair one project. Returns what became of it, and its text in the end, "" if a program refuses it."""
    before, (refused, _) = read_files(folder), inspect_project(folder, compose)
    words = ["-P", "-m", "devkit", "mcp", f"--project={folder}", *facts]
    server = StdioServerParameters(command=sys.executable, args=words, env=dict(os.environ), cwd=str(folder))

    async def agree(_context: object, _params: object) -> ElicitResult:
        return ElicitResult(action="accept", content={"confirmed": True})

    async with Client(stdio_client(server), elicitation_callback=agree) as client:
        assistant = Assistant(client)
        found, left = await assistant.repair()
    after, (rejected, text) = read_files(folder), inspect_project(folder, compose)
    changed = {path for path in {*before, *after} if before.get(path) != after.get(path)}
    worse = [f"changed without a diff: {path}" for path in sorted(changed - assistant.shown)]
    worse += [f"refused now: {each}" for each in rejected if each not in refused]
    worse += [f"found now: {code}" for code in sorted(left - found)]
    row = {"calls": assistant.calls, "worse": worse, "found": " ".join(sorted(found)), "left": " ".join(sorted(left))}
    return row | {"refused before": ", ".join(refused), "refused": ", ".join(rejected)}, "" if rejected else text


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
        projects: dict[str, tuple[Files, Any]] = {
            name: ({path: text.encode() for path, text in {**LIST, **case}.items()}, re.compile(right, re.DOTALL))
            for name, case in CASES.items()
            if (right := case.pop("right"))
        }
        projects |= {name: (broken, whole) for name, (whole, broken) in make_mutants(Path(scratch, "example")).items()}
        for name, (files, right) in projects.items():
            if options.only not in name:
                continue
            folder = Path(scratch, name)
            for path, content in files.items():
                (folder / path).parent.mkdir(parents=True, exist_ok=True)
                (folder / path).write_bytes(content)
            is_case = isinstance(right, re.Pattern)
            row, text = asyncio.run(measure(folder, options.compose, [f"--facts={saved}"] if is_case else []))
            row["repaired"] = bool(text and right.search(text)) if is_case else read_files(folder) == right
            rows.append({"name": name} | row)
            print(json.dumps(rows[-1]), flush=True)
    totals = {"repaired": sum(row["repaired"] for row in rows), "worse": sum(bool(row["worse"]) for row in rows)}
    totals["calls"] = sum(row["calls"] for row in rows)
    print(f"{len(rows)} projects, {totals}")
    if options.record:
        shown = {row.pop("name"): json.dumps(row) for row in rows}
        record(NAME, {"versions": versions("devkit-gpu", "mcp"), "seed": SEED, **totals, "projects": shown})
    return int(totals["worse"] > 0)


if __name__ == "__main__":
    sys.exit(main())
