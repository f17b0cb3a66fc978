"""Lint the English of user-facing text: sentences of at most 35 words, and none of the habits that CONTRIBUTING lists.

Pages and help texts are read sentence by sentence; code, comments and templates for the habits alone.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from docs.generate import render_pages  # noqa: E402

LONGEST = 35
HABITS = re.compile(
    r"(?i)\b(?:anew|all the same|whoever|of (?:its|their) own|by itself|for ever|in spite of|(?<!the )outside of|most often"
    r"|(?:an)?other \w+ than|(?<!there )(?:is|are) no(?! longer| more than)\b)\b"
)
PAGES = ("README.md", "CONTRIBUTING.md", "docs/*.md", "docs/guides/*.md", "docs/reference/*.md")
SOURCES = ("docs/decisions/*.md", "devkit/**/*.py", "devkit/doctor/**/*.toml", "templates/**/*")
QUOTES = ("docs/glossary.md", "CONTRIBUTING.md")
"""Pages that quote what not to write."""


def find_long_sentences(text: str) -> list[str]:
    """Return the sentences of a page that are too long. An inline code span or a link's target counts as one word."""
    text = re.sub(r"(?ms)^ *```.*?^ *```|^---$.*?^---$", "\n\n", text)
    text = re.sub(r"\]\([^)]*\)", "]", re.sub(r"`[^`]*`", "code", text))
    blocks = re.split(r"\n\s*\n|\n(?=\s*(?:[-*|#>]|\d+\.)\s)|(?<!\\)\|", text)
    sentences = (sentence for block in blocks for sentence in re.split(r"(?<=[.!?:])\s+", " ".join(block.split())))
    return [sentence for sentence in sentences if len(re.findall(r"[^\W_][\w'.-]*", sentence)) > LONGEST]


def main() -> int:
    """1 when a sentence is too long or has one of the habits."""
    texts = {
        path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
        for pattern in PAGES + SOURCES
        for path in sorted(ROOT.glob(pattern))
        if path.is_file()
    }
    texts["help texts"] = render_pages()["reference/commands.md"]
    habits = {name: text for name, text in texts.items() if name not in QUOTES}
    pages = {
        name: text for name, text in texts.items() if not name.startswith(("devkit/", "templates/", "docs/decisions/"))
    }
    found = [f"{name}: {hit[0]!r}" for name, text in habits.items() for hit in HABITS.finditer(text)]
    found += [
        f"{name}: over {LONGEST} words: {long}" for name, text in pages.items() for long in find_long_sentences(text)
    ]
    for line in found:
        sys.stderr.write(f"{line}\n")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
