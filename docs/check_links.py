"""Check the links of the built site: `python docs/check_links.py build/site` ends with 1 and lists those that lead nowhere."""

import html
import re
import sys
from collections.abc import Iterator
from pathlib import Path

LINK = re.compile(r'(?:href|src)="([^"]+)"')
ELSEWHERE = re.compile(r"[a-z]+:|//|/|#")


def find_broken_links(site: Path) -> Iterator[str]:
    """Yield each link within the site whose page or section is missing."""
    texts = {path.resolve(): path.read_text(encoding="utf-8") for path in site.rglob("*.html")}
    for page, text in sorted(texts.items()):
        for link in sorted(set(map(html.unescape, LINK.findall(text)))):
            path, _, section = link.partition("#")
            if ELSEWHERE.match(link):
                continue
            target = (page.parent / path.partition("?")[0]).resolve()
            if target.is_dir():
                target /= "index.html"
            if not target.exists() or (section and f'id="{section}"' not in texts.get(target, f'id="{section}"')):
                yield f"{page.relative_to(site.resolve())}: {link}"


if __name__ == "__main__":
    broken = list(find_broken_links(Path(sys.argv[1])))
    sys.stderr.write("".join(f"{line}\n" for line in broken))
    sys.exit(bool(broken))
