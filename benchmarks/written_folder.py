"""Files and lines that `devkit init` adds to a repository, as git counts what would be committed."""

import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.machine import record, versions

TARGET = ("--driver", "570.124.06", "--gpu", "RTX 4090", "--yes")
MAX_FILES, MAX_LINES = 8, 400


def measure(repository: str, folder: Path) -> dict[str, int]:
    """Return the added lines of each file that `devkit init` writes into a clone of the repository."""
    git = ["git", "-C", str(folder)]
    subprocess.run(["git", "clone", "--quiet", repository, str(folder)], check=True)
    subprocess.run(
        [sys.executable, "-m", "devkit", "init", str(folder), *TARGET],
        check=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )
    subprocess.run([*git, "add", "--all"], check=True)
    counted = subprocess.run([*git, "diff", "--cached", "--numstat"], capture_output=True, text=True, check=True).stdout
    rows = (line.split("\t") for line in counted.splitlines())
    return {path: 0 if added == "-" else int(added) for added, _, path in rows}


def main(repositories: list[str]) -> int:
    """Measure each repository, a folder or an address, and record the files; 1 where one of them is beyond the bound."""
    if not repositories:
        print(f"usage: {sys.argv[0]} REPOSITORY...", file=sys.stderr)
        return 2
    found: dict[str, dict[str, int]] = {}
    for repository in repositories:
        name = repository.rstrip("/").rpartition("/")[2].removesuffix(".git")
        with tempfile.TemporaryDirectory() as folder:
            found[name] = measure(repository, Path(folder, name))
        print(f"{name}: {len(found[name])} files, {sum(found[name].values())} lines")
        for path, lines in found[name].items():
            print(f"  {lines:4}  {path}")
    result: dict[str, object] = {
        "versions": versions("devkit-gpu"),
        "command": f"devkit init {' '.join(TARGET)}",
        "bounds": {"files": MAX_FILES, "lines": MAX_LINES},
        "repositories": {
            name: {"files": len(files), "lines": sum(files.values()), "by_file": files} for name, files in found.items()
        },
    }
    print(f"recorded in {record('written_folder', result)}")
    return int(any(len(files) > MAX_FILES or sum(files.values()) > MAX_LINES for files in found.values()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
