"""The comparison as one HTML page for a fleet: a row for each node that differs, sortable by any column."""

from html import escape
from typing import Any

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem; color: #1a1a1a; background: #fff; }
table { border-collapse: collapse; width: 100%; }
th, td { border-bottom: 1px solid #ddd; padding: .4rem .6rem; text-align: left; vertical-align: top; }
th { cursor: pointer; position: sticky; top: 0; background: #f4f4f4; }
th[aria-sort=ascending]::after { content: " \\2191"; } th[aria-sort=descending]::after { content: " \\2193"; }
td { overflow-wrap: anywhere; } .decides { color: #a40000; } .read { color: #7a4a00; } .no { color: #555; }
@media (prefers-color-scheme: dark) { body { background: #161616; color: #eee; } th { background: #262626; }
  .decides { color: #ff8a80; } .read { color: #ffcc80; } .no { color: #aaa; } th, td { border-color: #444; } }
"""
_SORT = """
document.querySelectorAll("th").forEach((head, column) => head.addEventListener("click", () => {
  const body = document.querySelector("tbody"), rows = [...body.rows];
  const up = head.getAttribute("aria-sort") !== "ascending";
  const text = row => row.cells[column].dataset.order || row.cells[column].textContent;
  rows.sort((a, b) => text(a).localeCompare(text(b), undefined, {numeric: true}) * (up ? 1 : -1));
  document.querySelectorAll("th").forEach(each => each.removeAttribute("aria-sort"));
  head.setAttribute("aria-sort", up ? "ascending" : "descending");
  body.append(...rows);
}));
"""
_COLUMNS = ("Node", "Relevance", "Hardware", "Findings", "Differences")
_ORDER = {"decides": "0", "read": "1", "no": "2"}
_WORDS = {"decides": "causes a finding", "read": "relevant", "no": "no check reads it"}


def render_comparison_page(document: dict[str, Any]) -> str:
    """Render the document devkit.compare/1 as a page that needs nothing else."""
    rows = [
        _render_row(node, outlier, group["of"])
        for group in document["groups"]
        for outlier in group["odd"]
        for node in outlier["nodes"]
    ]
    rows += [_render_split(split, group["of"]) for group in document["groups"] for split in group["without_majority"]]
    rows += [
        f'<tr><td>{escape(each["name"])}</td><td class="decides" data-order="0">not read</td><td></td><td></td>'
        f"<td>{escape(each['problem'])}</td></tr>"
        for each in document["unreadable"]
    ]
    heads = "".join(f'<th scope="col">{column}</th>' for column in _COLUMNS)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width">\n<title>devkit compare</title>\n'
        f"<style>{_STYLE}</style>\n</head>\n<body>\n<h1>{escape(_format_headline(document, len(rows)))}</h1>\n"
        f"<table>\n<thead><tr>{heads}</tr></thead>\n<tbody>\n{chr(10).join(rows)}\n</tbody>\n</table>\n"
        f"<script>{_SORT}</script>\n</body>\n</html>\n"
    )


def _format_headline(document: dict[str, Any], rows: int) -> str:
    compared = f"{document['nodes']} compared"
    return (
        f"{compared}, {rows} that differ" if document["verdict"] == "differ" else f"{compared}, no relevant difference"
    )


def _render_row(node: str, outlier: dict[str, Any], hardware: str) -> str:
    grade = outlier["matters"]
    findings = "<br>".join(escape(f"{each['code']}: {each['message']}") for each in outlier["findings"])
    differences = "<br>".join(
        escape(
            f"{each['field']} is {_format(each['value'])}; {each['agreeing']} of {each['of']} have {_format(each['usual'])}"
        )
        for each in outlier["differences"]
    )
    return (
        f'<tr><td>{escape(node)}</td><td class="{grade}" data-order="{_ORDER[grade]}">{_WORDS[grade]}</td>'
        f"<td>{escape(hardware)}</td><td>{findings}</td><td>{differences}</td></tr>"
    )


def _render_split(split: dict[str, Any], hardware: str) -> str:
    grade = split["matters"]
    values = "<br>".join(
        escape(f"{_format(each['value'])}: {each['nodes']}, such as {', '.join(each['such_as'])}")
        for each in split["values"]
    )
    return (
        f'<tr><td>no majority</td><td class="{grade}" data-order="{_ORDER[grade]}">{_WORDS[grade]}</td>'
        f"<td>{escape(hardware)}</td><td></td><td>{escape(split['field'])}<br>{values}</td></tr>"
    )


def _format(value: Any) -> str:  # noqa: ANN401 - any value of JSON
    return str(value["is"]) if isinstance(value, dict) else str(value)
