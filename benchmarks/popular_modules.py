"""Write the rows of the most downloaded packages into the table of imports: which package an imported module may belong to.

Usage: popular_modules.py DOWNLOADS MODULES REPOSITORIES. DOWNLOADS is top-pypi-packages.csv of hugovk/top-pypi-packages: the
15,000 packages with the most downloads of a month. MODULES is module_to_pypi.legacy.json of replit/upm: the modules that each
package installed. A package that it does not know, such as a newer one, may have the module of its name; devkit reads the wheel
before it believes either. REPOSITORIES is a folder of git mirrors: a module that two of them have themselves, such as utils,
says nothing about a package.
"""

import csv
import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from devkit.compat.specifiers import canonicalize_name
from devkit.compat.version_tables import load_tables

TABLE = Path(__file__).resolve().parents[1] / "devkit/compat/tables/imports.toml"
ROWS = re.compile(r"^  \{ from_rank = .*\n", re.MULTILINE)
RANKS_PER_ROW = 1000
MAX_OWNERS = 1
_OF_TESTS = re.compile(r"tests?_|(?:.*_)?tests?|test.*|.*tests")


def count_owners(repositories: Path) -> Counter[str]:
    """Count the repositories that have a module of each name themselves, in any folder."""
    found: Counter[str] = Counter()
    for git in (each for pattern in ("*/*/HEAD", "*/*/.git/HEAD") for each in repositories.glob(pattern)):
        command = ["git", f"--git-dir={git.parent}", "ls-tree", "-r", "--name-only", "HEAD"]
        paths = subprocess.run(command, capture_output=True, text=True, errors="replace").stdout.splitlines()
        found.update({part for path in paths if path.endswith(".py") for part in path.removesuffix(".py").split("/")})
    return found


def main(downloads: str, module_map: str, repositories: str) -> None:
    """Replace the rows of the table."""
    rows = list(csv.DictReader(Path(downloads).read_text(encoding="utf-8").splitlines()))
    ranks = {canonicalize_name(row["project"]): rank for rank, row in enumerate(rows)}
    owners, known = count_owners(Path(repositories)), load_tables().imports.distributions(with_compiled=True)
    found: dict[str, list[str]] = {}
    for module, name in json.loads(Path(module_map).read_text(encoding="utf-8")).items():
        found.setdefault(canonicalize_name(name), []).append(module)
    words: dict[int, list[str]] = {}
    for name, rank in ranks.items():
        modules = sorted(found.get(name, [name] if name.isidentifier() else []))
        # What a package brings beside the module of its name is mostly its own scripts and tests.
        for module in [each for each in modules if canonicalize_name(each) == name] or modules:
            is_private = module.startswith("_") or _OF_TESTS.fullmatch(module) or not module.isidentifier()
            if not (is_private or module in known or module in sys.stdlib_module_names or owners[module] > MAX_OWNERS):
                word = name if module == name else f"{name}:{module}"
                words.setdefault(rank // RANKS_PER_ROW * RANKS_PER_ROW, []).append(word)
    source = 'source = ["downloads", "upm"], confidence = "single-source"'
    lines = [
        f'  {{ from_rank = {rank + 1}, modules = "{" ".join(each)}", {source} }},\n' for rank, each in words.items()
    ]
    head, tail = TABLE.read_text(encoding="utf-8").split("popular = [\n")
    TABLE.write_text(f"{head}popular = [\n{''.join(lines)}{ROWS.sub('', tail)}", encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
