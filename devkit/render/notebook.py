"""Answers as HTML fragments, which notebooks show below a cell."""

from devkit.estimate.report import EstimateReport
from devkit.render.templates import render_html
from devkit.text import format_bytes


def frame_page(page: str) -> str:
    """Return a frame that holds a whole page apart from the notebook: neither's styles reach the other."""
    return render_html("notebook/frame.html.j2", page=page)


def render_text(text: str) -> str:
    """Return text as it was printed."""
    return render_html("notebook/text.html.j2", text=text)


def render_estimate(report: EstimateReport) -> str:
    """Return the terms of an estimate as bars, and the verdict for each GPU."""
    estimate = report.estimate
    terms = (*estimate.terms, *estimate.overheads)
    largest = max((term.bytes for term in terms), default=0)
    return render_html(
        "notebook/estimate.html.j2",
        title=f"{report.shape.name}: {format_bytes(estimate.device_peak_bytes.point)}",
        upper=format_bytes(estimate.device_peak_bytes.upper),
        terms=[(term.name, format_bytes(term.bytes), round(100 * term.bytes / max(1, largest))) for term in terms],
        gpus=[(each.gpu.name, format_bytes(each.gpu.memory_bytes), each.verdict.value) for each in report.gpus],
    )
