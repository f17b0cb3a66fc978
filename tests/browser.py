"""A real browser without a window, for what a page looks like."""

import html
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from PIL import Image

NAMES = ("chromium", "google-chrome", "chrome", "chromium-browser")
SCHEMES = {"dark": 0, "light": 1}
_MEASURE = """<script>addEventListener('load', () => {
  const root = document.documentElement, top = parent.document.documentElement;
  const wide = [...document.querySelectorAll('body *')].filter(
    one => one.getBoundingClientRect().right > innerWidth + 1).map(one => one.tagName + '.' + one.className);
  const box = one => document.querySelector(one)?.getBoundingClientRect();
  top.setAttribute('data-measured', JSON.stringify({
    inner: innerWidth, scroll: root.scrollWidth, wide: wide.slice(0, 5),
    background: getComputedStyle(document.body).backgroundColor,
    scripts: document.querySelectorAll('script').length - 1,
    asked: performance.getEntriesByType('resource').length,
    open: [...document.querySelectorAll('details[open] strong')].map(one => one.textContent),
    cause: box('.layer.is-cause')?.top ?? null, verdict: box('h1').top, fix: box('.first')?.top ?? null }));
})</script>"""


def browser() -> str:
    """The browser's program; skips where there is none, and fails in CI, where there must be one."""
    found = next((path for name in NAMES if (path := shutil.which(name))), None)
    if found:
        return found
    if os.environ.get("CI") == "true":
        pytest.fail("CI has no browser: apt-get install chromium")
    return pytest.skip("no browser here: apt-get install chromium")


def shot(page: Path, *, width: int, height: int, scheme: str) -> Image.Image:
    """What the page looks like in a window of that size, in "light" or "dark"."""
    picture = page.with_name(f"{page.stem}-{scheme}-{width}.png")
    _run(page, f"--screenshot={picture}", f"--window-size={width},{height}", scheme=scheme)
    return Image.open(picture).convert("RGB")


def count_printed_pages(page: Path) -> int:
    """Count the sheets that the browser prints the page on."""
    sheets = page.with_suffix(".pdf")
    _run(page, "--no-pdf-header-footer", f"--print-to-pdf={sheets}", scheme="light")
    return max(map(int, re.findall(rb"/Count (\d+)", sheets.read_bytes())))


def measured(page: Path, *, width: int, scheme: str) -> dict:
    """What the browser itself says of the laid-out page. The page is copied, and may run one script there."""
    text = page.read_text(encoding="utf-8")
    policy = re.compile(r'<meta http-equiv="Content-Security-Policy"[^>]*>')
    assert policy.search(text)
    inner = html.escape(policy.sub("", text).replace("</head>", f"{_MEASURE}</head>"), quote=True)
    # A window cannot be as narrow as a phone, but a frame can.
    frame = f'<!doctype html><html lang="en"><iframe width="{width}" height="900" frameborder="0" srcdoc="{inner}">'
    copy = page.with_name(f"{page.stem}-measured.html")
    copy.write_text(f"{frame}</iframe></html>", encoding="utf-8")
    dom = _run(copy, "--dump-dom", f"--window-size={width + 100},1000", scheme=scheme)
    found = re.search(r'data-measured="([^"]*)"', dom)
    assert found, dom[:500]
    return json.loads(html.unescape(found[1]))


def _run(page: Path, *flags: str, scheme: str) -> str:
    # Its own profile, so that several may run at once; no sandbox, because tests may run as root.
    argv = [
        browser(),
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--hide-scrollbars",
        f"--user-data-dir={page.parent / 'profile'}",
        f"--blink-settings=preferredColorScheme={SCHEMES[scheme]}",
        *flags,
        page.as_uri(),
    ]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout
