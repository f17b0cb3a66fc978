"""Keep the `--help` blocks in README.md equal to what the program prints. With --check, only say whether they are.

A block stands between `<!-- help: devkit doctor -->` and `<!-- end help -->`.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
BLOCK = re.compile(r"(<!-- help: devkit ?([\w -]*?) -->\n).*?(<!-- end help -->)", re.DOTALL)


def help_text(words: list[str]) -> str:
    """What `devkit WORDS --help` prints in an 80-column, colourless terminal."""
    env = os.environ | {"COLUMNS": "80", "NO_COLOR": "1", "LC_ALL": "C.UTF-8"}
    argv = [sys.executable, "-m", "devkit", *words, "--help"]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=True)
    return done.stdout.replace("python -m devkit", "devkit").strip()


def filled(text: str) -> str:
    """`text` with every block as the program prints it now."""

    def block(found: re.Match[str]) -> str:
        return f"{found[1]}```text\n{help_text(found[2].split())}\n```\n{found[3]}"

    return BLOCK.sub(block, text)


def main() -> int:
    """Write the blocks; or with --check answer 1 when they are stale."""
    text = README.read_text(encoding="utf-8")
    fresh = filled(text)
    if "--check" not in sys.argv:
        README.write_text(fresh, encoding="utf-8")
        return 0
    if fresh != text:
        sys.stderr.write(
            "README.md shows other help than the program prints: run .venv/bin/python .ci/help_blocks.py\n"
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
