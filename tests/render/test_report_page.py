"""The report's page: complete in itself, safe against what it shows, and laid out in a real browser."""

import base64
import hashlib
import os
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from devkit.doctor.model import Fix, Location
from devkit.facts.secrets import build_redaction
from devkit.release import DOCUMENTATION_URL
from devkit.render.html import render_report_page
from tests.browser import count_printed_pages, measured, shot
from tests.doctor.machines import healthy, without_gpu
from tests.doctor.running import (
    CONSEQUENCE,
    CRASHED,
    EVERYTHING,
    HUNG,
    IN_A_FILE,
    NOTE,
    PASSED,
    ROOT,
    SKIPPED,
    a_finding,
    a_report,
    an_outcome,
    build_full_report,
)
from tests.hosts import MACHINES, facts_of

BROKEN, WELL = "driver-lib-mismatch", "ubuntu-4090-ok"
KEEP = os.environ.get("DEVKIT_KEEP_PICTURES")


def page(*outcomes):
    return render_report_page(healthy(), a_report(*outcomes))


def page_of(name):
    facts = facts_of(name)
    redaction = build_redaction(facts)
    return render_report_page(redaction.of(facts), redaction.of(build_full_report(facts)))


class Reader(HTMLParser):
    """Every element with its attributes, and whether all were closed in order."""

    VOID = frozenset({"meta", "path", "circle", "br", "hr", "img", "link", "input"})

    def __init__(self, text):
        super().__init__()
        self.elements, self.open, self.words = [], [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)

    def text(self):
        return " ".join(" ".join(self.words).split())


def test_a_page_says_everything_of_a_report_in_one_well_formed_document():
    reader = Reader(page(*EVERYTHING))
    tags = [tag for tag, _ in reader.elements]
    assert tags.count("main") == tags.count("h1") == tags.count("header") == tags.count("footer") == 1
    text = reader.text()
    for outcome in EVERYTHING:
        for finding in getattr(outcome, "findings", ()):
            said = [finding.message, *finding.evidence, *(finding.fix.commands if finding.fix else ())]
            assert [words for words in said if " ".join(words.split()) not in text] == [], outcome.code
    titles = re.findall(r'class="layer is-\w+ fade-\d".*?class="title">(.*?)<', page(*EVERYTHING), re.DOTALL)
    assert len(titles) == len(set(titles))


@pytest.mark.full
@pytest.mark.parametrize(
    "machines", [MACHINES[::8], pytest.param(MACHINES, marks=pytest.mark.nightly)], ids=["some", "all"]
)
def test_every_recorded_machine_has_a_page_that_is_well_formed(machines):
    for name in machines:
        tags = [tag for tag, _ in Reader(page_of(name)).elements]
        assert tags.count("main") == tags.count("h1") == tags.count("header") == tags.count("footer") == 1, name


def test_it_needs_nothing_but_itself():
    text = page(*EVERYTHING)
    elements = Reader(text).elements
    assert not {"img", "link", "iframe", "form", "object"} & {tag for tag, _ in elements}
    assert [attributes for tag, attributes in elements if tag == "script"] == [{}]
    assert not [attributes for _, attributes in elements if {"src", "style", "onclick"} & set(attributes)]
    assert "url(" not in text
    assert "@import" not in text


def test_its_policy_allows_its_own_style_and_script_and_nothing_else():
    text = page(ROOT)
    style, script = (re.search(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)[1] for tag in ("style", "script"))
    digest, of_script = (base64.b64encode(hashlib.sha256(each.encode()).digest()).decode() for each in (style, script))
    policy = next(a["content"] for tag, a in Reader(text).elements if a.get("http-equiv") == "Content-Security-Policy")
    sources = f"style-src 'sha256-{digest}'; script-src 'sha256-{of_script}'"
    assert policy == f"default-src 'none'; {sources}; base-uri 'none'; form-action 'none'"


def test_commands_can_be_copied_codes_lead_to_their_pages_and_no_backtick_is_left():
    text = page(an_outcome("DRV901", a_finding(message="`modinfo` says", fix=Fix("Run `x`.", ("sudo do",)))))
    elements = Reader(text).elements
    assert [a["class"] for tag, a in elements if tag == "button"] == ["copy"]
    assert f"{DOCUMENTATION_URL}/checks/DRV901/" in {a["href"] for tag, a in elements if tag == "a"}
    assert "<h1><code>modinfo</code> says</h1>" in text
    assert "`" not in re.search(r"<body.*</body>", text, re.DOTALL)[0]


HOSTILE = "\"><script>alert(1)</script><img src=x onerror=alert(2)>{{ 7 * 7 }}'&"


def test_nothing_that_it_shows_becomes_markup():
    finding = a_finding(
        message=HOSTILE,
        subject=HOSTILE,
        evidence=(HOSTILE,),
        location=Location(HOSTILE, 1),
        seen_in=HOSTILE,
        fix=Fix(HOSTILE, (HOSTILE,), docs=f"javascript:{HOSTILE}"),
    )
    text = page(an_outcome("DRV901", finding), an_outcome("PYT901", finding), CRASHED)
    elements = Reader(text).elements
    assert [tag for tag, _ in elements if tag in ("script", "img")] == ["script"]
    assert all(a["href"].startswith(DOCUMENTATION_URL) for tag, a in elements if tag == "a")
    assert not [a for _, a in elements if any(name.startswith("on") for name in a)]
    assert "<script>alert" not in text
    assert "49" not in text
    assert text.count("&lt;script&gt;") > 5


def test_only_web_pages_are_linked():
    linked = an_outcome("DRV901", a_finding(fix=Fix("x", docs="https://example.org/a?b=1&c=2")))
    links = [a["href"] for tag, a in Reader(page(linked)).elements if tag == "a"]
    assert [link for link in links if not link.startswith(DOCUMENTATION_URL)] == ["https://example.org/a?b=1&c=2"]


@pytest.mark.parametrize(
    ("outcomes", "words"),
    [
        pytest.param([PASSED], "not tried settings look right, but not tried", id="healthy"),
        pytest.param([ROOT, CONSEQUENCE], "root cause the cause", id="the cause"),
        pytest.param([IN_A_FILE], "warning a line is wrong", id="a warning"),
        pytest.param([CRASHED], "warning 1 check crashed;", id="a crash"),
        pytest.param([HUNG], "incomplete not read: modinfo did not answer in time", id="a lost fact"),
        pytest.param([NOTE], "not tried settings look right, but not tried", id="a note"),
    ],
)
def test_the_headline_says_in_words_what_the_color_says(outcomes, words):
    assert words in Reader(page(*outcomes)).text()


def test_a_machine_without_a_gpu_is_not_green():
    text = render_report_page(without_gpu(), build_full_report(without_gpu()))
    assert '<body class="is-no-gpu">' in text
    assert "nothing to judge no NVIDIA GPU found" in Reader(text).text()
    assert 'class="word">healthy' not in text


def test_the_cause_is_open_and_the_chain_behind_it_fades():
    text = page(ROOT, CONSEQUENCE, PASSED, SKIPPED)
    layers = re.findall(r'class="layer is-(\w+) fade-(\d)"', text)
    assert layers == [
        ("unjudged", "0"),
        ("cause", "0"),
        ("unjudged", "1"),
        ("fine", "2"),
        ("unjudged", "3"),
        ("unjudged", "4"),
        ("unjudged", "5"),
        ("follows", "5"),
        ("unjudged", "5"),
        ("unjudged", "5"),
    ]
    assert text.count("<details open>") == 1
    assert "1 finding follows from it and will go with it." in text


def test_findings_say_file_and_line_confidence_and_side():
    seen = an_outcome("PRJ901", a_finding(location=Location("compose.yml", 7), seen_in="dev container"))
    text = Reader(page(seen)).text()
    assert "compose.yml:7" in text
    assert "seen in the dev container" in text
    assert "likely" in text


def luminance(color):
    channels = [int(color[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in channels]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


PAIRS = [
    *((ink, ground) for ink in ("ink", "soft") for ground in ("page", "card", "sunk")),
    *((tone, ground) for tone in ("cause", "warning", "fine") for ground in ("page", "card", f"{tone}-soft")),
    *(("ink", f"{tone}-soft") for tone in ("cause", "warning", "fine")),
]


def test_every_text_is_readable():
    """WCAG 2.2, 1.4.3: a contrast of 4.5 to 1 for text of an ordinary size."""
    light_and_dark = re.findall(r":root \{(.*?)\}", page(ROOT), re.DOTALL)[:2]
    for scheme in light_and_dark:
        colors = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", scheme))
        for ink, ground in PAIRS:
            light, dark = sorted((luminance(colors[ink]), luminance(colors[ground])), reverse=True)
            assert (light + 0.05) / (dark + 0.05) >= 4.5, (ink, ground)


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    for name in (BROKEN, WELL):
        (folder / f"{name}.html").write_text(page_of(name), encoding="utf-8")
    long = a_finding(message="/a/very/long/path" * 20, evidence=("x" * 300,), fix=Fix("y" * 200, ("z" * 400,)))
    (folder / "long.html").write_text(page(an_outcome("DRV901", long), CONSEQUENCE), encoding="utf-8")
    return folder


@pytest.mark.parametrize("width", [1440, 1280, 768, 360])
@pytest.mark.parametrize("name", [BROKEN, WELL, "long"])
@pytest.mark.full
def test_nothing_is_wider_than_the_window(pages, name, width):
    found = measured(pages / f"{name}.html", width=width, scheme="light")
    assert found["inner"] == width
    assert found["scroll"] <= width, found["wide"]
    assert found["wide"] == []
    assert (found["asked"], found["scripts"]) == (0, 1)  # the buttons' own


@pytest.mark.full
def test_the_cause_and_its_fix_stand_above_the_picture_of_the_stack(pages):
    found = measured(pages / f"{BROKEN}.html", width=360, scheme="light")
    assert found["verdict"] < found["fix"] < found["cause"]
    assert found["open"] == ["NVML and libcuda", "Fix"] or found["open"][0] == "NVML and libcuda"


@pytest.mark.full
def test_one_problem_is_printed_on_two_sheets(pages):
    assert count_printed_pages(pages / f"{BROKEN}.html") <= 2


@pytest.mark.parametrize(("name", "width"), [(BROKEN, 1280), (BROKEN, 360), (WELL, 360), (WELL, 1280)])
@pytest.mark.full
def test_light_and_dark_differ_and_neither_is_blank(pages, name, width):
    pictures = {
        scheme: shot(pages / f"{name}.html", width=width, height=1500, scheme=scheme) for scheme in ("light", "dark")
    }
    corners = {scheme: sum(picture.getpixel((2, 2))) / 3 for scheme, picture in pictures.items()}
    assert corners["light"] > 200
    assert corners["dark"] < 60
    for picture in pictures.values():
        assert picture.width == width
        assert len(set(picture.resize((160, 160)).tobytes())) > 60
    if KEEP:
        for scheme, picture in pictures.items():
            picture.save(Path(KEEP) / f"{name}-{scheme}-{width}.png")
