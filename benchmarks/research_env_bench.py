"""Count the imports that pyright cannot resolve (C0 of ResearchEnvBench) in the environments that `devkit init` plans.

    python -m benchmarks.research_env_bench BENCHMARK CLONES [--half even|odd] [--only NAME]… [--record [--again]]

BENCHMARK is a checkout of No-518/ResearchEnvBench, whose scripts_repos_table.csv lists repositories by name, address and commit.
CLONES/OWNER+NAME or CLONES/OWNER+NAME/repo are clones. A row says whether its clone has the listed commit; otherwise the newest is used.
`devkit init` runs in a copy. The lines that install packages, in the Dockerfile and at the container's creation, then run in a virtual
environment. `script` is the count of the benchmark's own script. `pyright` is the strict one: every top-level name that pyright reports,
whether or not the script can read it. Where the script shows pyright less than half of the Python files, pyright looks at all of them.
`--record` writes each row when it ends, and measures only what has no row yet; `--again` measures all.

Deviations: Debian packages are left out. Wheels over 20 MiB, torch's among them, are installed as empty files, and other sources are
emptied before pyright looks, because C0 asks only which files exist. Other indexes than the default one are not asked. conda's packages
come from the package index by the same name, in any version. What does not install is dropped and counts as missing. If init asks whether
an index may be used, the answer is yes (`--allow-index`), and the row says so.
"""

import argparse
import csv
import hashlib
import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from benchmarks.machine import RESULTS, record_rows, versions
from devkit.probe.wheel_files import open_wheel, send_request

INIT = ("init", "--driver=550.163.01", "--gpu=RTX 4090", "--yes", "--develop", "--add-imports")
LIMIT_S = 900.0
"""For the plan and the installation of one repository, and again for its count."""
INDEX = os.environ.get("UV_DEFAULT_INDEX", "https://pypi.org/simple")
JSON_PAGE = "application/vnd.pypi.simple.v1+json"
PORT = 28766
"""It is fixed, so that uv knows from its cache in the next run what it fetched."""
ALLOW = re.compile(r"which you have not allowed.*?--allow-index\s+(https?://[^\s.\"]+(?:\.[^\s.\"]+)*)", re.DOTALL)
IMPORTABLE = (".py", ".pyi", ".so", ".pyd", "/py.typed", ".pth")
SMALL_BYTES = 2048
LARGE_BYTES = 20 << 20
OTHER_INDEX = re.compile(
    r"(?m)(?:--default-index|--index|--(?:extra-)?index-url|^-i)[= ](?:[\w.-]+=)?https?://\S+|\+(?:cu\d+|cpu)\b"
)
"""What only another index has: its options, and versions of torch with their build."""
MISSING = re.compile(r'Import "([^."]+)')
CULPRIT = re.compile(
    r"(?:Failed to [a-z ]+|distribution):? (?:`|(?=http))([a-z+]+://[^`\s]+|\w[\w.-]*)"
    r"|Because ([\w.-]+) was not found|git fetch[^']*'([^']+)'"
)
TOTALS = ("total_imported_packages_count", "total_imports_count")
COUNTS = ("missing_packages_count", "missing_imports_count")


class HollowIndex(BaseHTTPRequestHandler):
    """The package index, with large wheels replaced by their list of files."""

    made: Path

    def do_GET(self) -> None:
        """Answer with a page of the index, a hollow wheel or the metadata of one."""
        what, _, rest = self.path.lstrip("/").partition("/")
        for _ in range(4):
            try:
                content = self._read_page(rest) if what == "simple" else self._read_wheel(rest)
            except (OSError, zipfile.BadZipFile) as error:
                code = getattr(error, "code", 503)
                time.sleep(0 if code == 404 else 2)
                continue
            self.send_response(200)
            self.send_header("Content-Type", JSON_PAGE if what == "simple" else "application/zip")
            self.send_header("Content-Length", str(len(content)))
            with suppress(OSError):  # uv stops waiting once it knows enough
                self.end_headers()
                self.wfile.write(content)
            return
        self.send_error(code)

    def _read_page(self, name: str) -> bytes:
        with send_request(f"{INDEX}/{name}", Accept=JSON_PAGE) as answer:
            page = json.load(answer)
        for file in page["files"]:
            file["url"] = urllib.parse.urljoin(f"{INDEX}/{name}", file["url"])
            if file["filename"].endswith(".whl") and (file.get("size") or 0) > LARGE_BYTES:
                file["url"] = f"http://127.0.0.1:{PORT}/hollow/{file['url'].replace('://', '/', 1)}"
                file |= {"hashes": {}, "core-metadata": True}
        return json.dumps(page).encode()

    def _read_wheel(self, address: str) -> bytes:
        url = address.replace("/", "://", 1)
        if url.endswith(".metadata"):
            with zipfile.ZipFile(io.BytesIO(self._read_wheel(address.removesuffix(".metadata")))) as wheel:
                return wheel.read(next(name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")))
        kept = self.made / hashlib.sha256(url.encode()).hexdigest()
        if not kept.exists():
            buffer = io.BytesIO()
            with open_wheel(url) as wheel, zipfile.ZipFile(buffer, "w") as hollow:
                for name in wheel.namelist():
                    if ".dist-info/" in name or name.endswith(IMPORTABLE):
                        hollow.writestr(name, wheel.read(name) if ".dist-info/" in name else b"")
            whole = kept.with_suffix(f".{threading.get_ident()}")
            whole.write_bytes(buffer.getvalue())
            whole.rename(kept)
        return kept.read_bytes()

    def log_message(self, format: str, *words: object) -> None:
        """Stay quiet."""


@dataclass
class Row:
    """What was seen of one repository: `script` and `pyright` are counts of missing names, -1 before anything was counted."""

    name: str
    index: int
    canonical: int
    commit: str = ""
    is_pinned: bool = False
    init_s: float = 0.0
    all_s: float = 0.0
    plan: str = "none"
    said: str = ""
    script: int = -1
    total: int = -1
    pyright: int = -1
    files: str = ""
    missing: list[str] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def run(argv: list[str], folder: Path, ends_at: float = 0.0, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command until the time `ends_at` of the monotonic clock, LIMIT_S where none is given."""
    left_s = max(1.0, ends_at - time.monotonic()) if ends_at else LIMIT_S
    variables = {**os.environ, "GIT_LFS_SKIP_SMUDGE": "1", **environment}
    limited = ["timeout", "--kill-after=5", f"{left_s:.0f}", *argv]
    streams = {"capture_output": True, "text": True, "errors": "replace", "stdin": subprocess.DEVNULL}
    return subprocess.run(limited, cwd=folder, env=variables, check=False, **streams)  # type: ignore[call-overload,no-any-return]


def list_installations(root: Path) -> Iterator[str]:
    """List what the Dockerfile and the container's creation run to install packages, as commands of the shell."""
    folder = root / ".devcontainer"
    lines = [line for line in (folder / "Dockerfile").read_text().splitlines() if not line.startswith("#")]
    for instruction in re.findall(r"^RUN (.*)", "\n".join(lines).replace("\\\n", " "), re.MULTILINE):
        if "uv pip install" in instruction and "/opt/devkit" not in instruction:
            yield re.sub(r"--mount=\S+", "", instruction)
    if (conda := folder / "conda.yaml").exists():
        names = re.findall(r'^  - "(?:[\w-]+::)?([\w.-]+)', conda.read_text(), re.MULTILINE)
        yield f"uv pip install {' '.join(name for name in names if name not in ('python', 'pip'))}"
    for command in re.findall(r'"project\w*": ("(?:[^"\\]|\\.)*")', (folder / "devcontainer.json").read_text()):
        yield str(json.loads(command))


def install(root: Path, scratch: Path, row: Row, ends_at: float) -> None:
    """Install by the Dockerfile's own lines. What fails is dropped by name or address, and the line runs again."""
    work = scratch / "work"
    work.mkdir()
    (work / "build-constraints.txt").write_text("setuptools<82\n")
    excluded = work / "excluded.list"
    excluded.touch()
    variables = {
        "VIRTUAL_ENV": f"{scratch}/venv",
        "PATH": f"{scratch}/venv/bin:{os.environ['PATH']}",
        "UV_DEFAULT_INDEX": f"http://127.0.0.1:{PORT}/simple",
        "UV_NO_CONFIG": "1",
        "UV_NO_VERIFY_HASHES": "1",
        "UV_BUILD_CONSTRAINT": f"{work}/build-constraints.txt",
        "UV_HTTP_TIMEOUT": "120",
    }
    paths = {
        "/mnt/project": str(root),
        "/mnt/work": str(work),
        "/root/.cache/": f"{work}/",
        "/opt/venv": f"{scratch}/venv",
        "/mnt/": f"{root}/.devcontainer/",
        "--compile-bytecode": "",
        "--link-mode=copy": "",
        # A lock names its index, and would not fit another one.
        "uv export": "env --unset=UV_DEFAULT_INDEX --unset=UV_NO_CONFIG uv export",
        "uv pip install": f"uv pip install --excludes={excluded}",
    }

    def replace_in_lists(pattern: re.Pattern[str], other: str) -> None:
        for path in (*root.rglob("*.txt"), *work.rglob("*.txt")):
            if pattern.search(content := path.read_text(errors="replace")):
                path.write_text(pattern.sub(other, content))

    replace_in_lists(OTHER_INDEX, "")
    for text in list_installations(root):
        for before, after in paths.items():
            text = text.replace(before, after)
        text = OTHER_INDEX.sub("", text)
        while time.monotonic() < ends_at:
            done = run(["bash", "-c", text], root, ends_at, **variables)
            if (done.returncode == 0 and "not installed, because" not in done.stderr) or "\nUsage: uv" in done.stderr:
                break  # uv shows its usage when all that the line installs was dropped
            found = CULPRIT.search(done.stderr)
            culprit = next(filter(None, found.groups())) if found else "a line"
            row.dropped.append(f"{culprit}: {' '.join(done.stderr.replace(str(scratch), '').split())[-120:]}")
            if not found or sum(each.startswith(f"{culprit}:") for each in row.dropped) > 1:
                break
            if "://" in culprit:
                requirement = re.compile(
                    rf"(?:-\S+[= ])?(?:[\w.-]+(?:\[[^]]*\])? ?@ ?)?[\w+]*{re.escape(culprit)}[^\s\"']*"
                )
                text = requirement.sub("pip", text)
                replace_in_lists(requirement, "pip")
            else:
                excluded.write_text(f"{excluded.read_text()}{culprit}\n")
    if time.monotonic() > ends_at:
        row.notes.append(f"not all was installed within {LIMIT_S:.0f} s")


def parse(text: str) -> dict[str, Any]:
    """Parse the JSON object of an output that may have other lines before it; empty where it has none."""
    with suppress(ValueError):
        return dict(json.loads(text[text.find("{") :]))
    return {}


def count(root: Path, environment: Path, benchmark: Path, row: Row) -> None:
    """Count what is missing, by the benchmark's script and strictly by what pyright says."""
    python = str(environment / "bin" / "python")
    # pyright asks the first python of PATH, as in the image.
    active = {"VIRTUAL_ENV": str(environment), "PATH": f"{environment}/bin:{os.environ['PATH']}"}
    scripts = benchmark / "scripts" / row.name.replace("/", "@") / "benchmark_scripts"
    text = "".join(path.read_text() for path in scripts.glob("run_pyright*"))
    tracked = [line for line in run(["git", "ls-files", "*.py"], root).stdout.splitlines() if (root / line).exists()]
    shutil.copytree(scripts, root / "benchmark_scripts")  # where the benchmark has them
    options = ["--python", python, *(["--repo", str(root)] if re.search(r'--repo[")]', text) else [])]
    options += ["--install-pyright"] if "--install-pyright" in text else []
    done = run(["bash", "benchmark_scripts/run_pyright_missing_imports.sh", *options], root, 0.0, **active)
    read = [path for name in ("results", "analysis") for path in root.rglob(f"build_output/**/{name}.json")]
    figures = [{**(each.get("metrics") or {}), **each} for each in (parse(path.read_text()) for path in read)]
    row.script = next((each[key] for each in figures for key in COUNTS if key in each), -1)
    row.total = next((each[key] for each in figures for key in TOTALS if key in each), -1)
    outputs = [parse(path.read_text()) for path in root.rglob("build_output/**/pyright_output.json")]
    looked = sum(each.get("summary", {}).get("filesAnalyzed", 0) for each in outputs)
    row.files = f"{looked} of {len(tracked)}"
    if row.script < 0 or not looked:
        row.notes.append(f"the script gave no count: {' '.join((done.stdout + done.stderr).split())[-200:]}")
    if looked * 2 < len(tracked):
        shutil.rmtree(root / "benchmark_scripts", ignore_errors=True)
        whole = run([python, "-m", "pyright", ".", "--outputjson"], root, 0.0, **active)
        outputs.append(parse(whole.stdout))
        row.files += f", then {outputs[-1].get('summary', {}).get('filesAnalyzed', 0)}"
    said = [each for output in outputs for each in output.get("generalDiagnostics", [])]
    names = [MISSING.search(each["message"]) for each in said if each.get("rule") == "reportMissingImports"]
    row.missing = sorted({name[1] for name in names if name})
    row.pyright = len(row.missing) if any("summary" in each for each in outputs) else -1
    row.script = row.script if row.pyright >= 0 else -1


def examine(row: Row, clone: Path, commit: str, benchmark: Path) -> None:
    """Plan, install and count in a copy of one repository."""
    if not clone.exists():
        raise FileNotFoundError("no clone")
    with tempfile.TemporaryDirectory(prefix="research-env-", ignore_cleanup_errors=True) as name:
        scratch, root = Path(name), Path(name, row.name.partition("/")[2])
        run(["git", "clone", "--quiet", "--no-checkout", "--shared", str(clone), str(root)], clone)
        row.is_pinned = run(["git", "reset", "--quiet", commit], root).returncode == 0
        if not row.is_pinned:
            run(["git", "reset", "--quiet"], root)
        run(["git", "checkout-index", "--all", "--force"], root)
        row.commit = run(["git", "rev-parse", "HEAD"], root).stdout.strip()
        started = time.monotonic()
        ends_at = started + LIMIT_S
        init = [sys.executable, "-m", "devkit", *INIT, "--json", str(root)]
        done = run(init, root, ends_at)
        while (asked := ALLOW.search(done.stdout + done.stderr)) and asked[1] not in init:
            row.notes.append(f"--allow-index {asked[1]}")
            init += ["--allow-index", asked[1]]
            done = run(init, root, ends_at)
        row.init_s = round(time.monotonic() - started, 1)
        document = parse(done.stdout)
        plan = document.get("plan") or {}
        if done.returncode:
            row.notes.append(f"init exits {done.returncode}: {' '.join((done.stdout + done.stderr).split())[:300]}")
        run(["uv", "venv", "--quiet", f"--python={plan.get('python') or '3.12'}", f"{scratch}/venv"], root)
        if plan:
            row.plan = f"Python {plan.get('python')}, torch {plan.get('torch')} ({plan.get('variant')})"
            row.said = str(document.get("proof"))
        if plan and (root / ".devcontainer" / "Dockerfile").exists():
            install(root, scratch, row, ends_at)
        for path in (scratch / "venv" / "lib").rglob("*.py*"):
            # What .pth files name runs at each start of Python.
            is_run = path.parent.name in ("site-packages", "_distutils_hack")
            if path.suffix in (".py", ".pyi") and path.stat().st_size > SMALL_BYTES and not is_run:
                path.unlink()  # it may be a link into uv's cache
                path.touch()
        run(["uv", "pip", "install", "--quiet", "--reinstall", f"--python={scratch}/venv", "pyright", "pip"], scratch)
        count(root, scratch / "venv", benchmark, row)
        row.all_s = round(time.monotonic() - started, 1)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("benchmark", type=Path)
    parser.add_argument("clones", type=Path)
    parser.add_argument("--half", choices=("even", "odd"), help="every second repository of the list")
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--record", action="store_true", help="add the rows to results/research_env_bench.json")
    parser.add_argument("--again", action="store_true", help="measure what has a row, too")
    options = parser.parse_args()
    totals = json.loads((options.benchmark / "m5" / "c0_repo_baseline_totals.json").read_text())["repos"]
    of: dict[str, object] = {"versions": versions("devkit-gpu", "uv"), "command": shlex.join(("devkit", *INIT))}
    path = RESULTS / "research_env_bench.json"
    known = json.loads(path.read_text())["rows"] if path.exists() and options.record and not options.again else []
    skipped = {row["name"] for row in known}
    with tempfile.TemporaryDirectory() as made, ThreadPoolExecutor(options.jobs) as pool:
        server = type("Server", (ThreadingHTTPServer,), {"request_queue_size": 512})
        index = server(("127.0.0.1", PORT), type("Index", (HollowIndex,), {"made": Path(made)}))
        threading.Thread(target=index.serve_forever, daemon=True).start()
        waiting = {}
        for place, line in enumerate(csv.DictReader((options.benchmark / "scripts_repos_table.csv").open())):
            row = Row(line["repo"], place, totals[line["repo"]])
            is_wanted = not options.only or any(each in row.name for each in options.only)
            if is_wanted and row.name not in skipped and options.half in (None, ("even", "odd")[place % 2]):
                folder = options.clones / row.name.replace("/", "+")
                clone = folder / "repo" if (folder / "repo").exists() else folder
                task = pool.submit(examine, row, clone, line["commit"], options.benchmark.resolve())
                waiting[task] = row
        for each in as_completed(waiting):
            row = waiting[each]
            if error := each.exception():
                row.notes.append(f"not measured: {error!r}")
            print(json.dumps(vars(row)), flush=True)
            if options.record:
                record_rows("research_env_bench", [vars(row)], of)
    return 0


if __name__ == "__main__":
    os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    sys.exit(main())
