"""`devkit exporter`: serve the last diagnosis of this machine to Prometheus."""

import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from devkit.errors import DevkitError, ExitCode
from devkit.release import INSTALL_EXPORTER_COMMAND
from devkit.text import to_one_line

if TYPE_CHECKING:
    from prometheus_client import Metric

_END_S = 60.0
"""What a diagnosis takes at most beside reading the machine: it is killed then, and the next one starts."""


class _LastDiagnosis:
    """The metrics of the last diagnosis. A scrape reads them, and never the machine."""

    def __init__(self) -> None:
        self._text = ""
        self._failed = 0
        self._is_fresh = False

    def collect(self) -> "Iterator[Metric]":
        """Yield the metrics, as prometheus_client asks for them."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
        from prometheus_client.parser import text_string_to_metric_families

        is_fresh, text = self._is_fresh, self._text
        yield GaugeMetricFamily("devkit_exporter_up", "1 when the last diagnosis came to its end.", value=is_fresh)
        yield CounterMetricFamily("devkit_exporter_failures", "Diagnoses that did not come to their end.", self._failed)
        yield from text_string_to_metric_families(text)

    def renew(self, timeout_s: float) -> None:
        """Diagnose in a process of its own, which a wedged driver may take with it."""
        from devkit.probe.host import run_program

        words = [sys.executable, "-P", "-m", "devkit", "doctor", "--format", "prometheus", "--timeout", str(timeout_s)]
        done = run_program(words, deadline_s=timeout_s + _END_S)
        self._is_fresh = done.code in (ExitCode.DONE, ExitCode.ANSWER_IS_NO)
        if self._is_fresh:
            self._text = done.out
        else:
            self._failed += 1
            click.echo(f"The diagnosis ended with {done.code}: {to_one_line(done.err)[-300:]}", err=True)


@click.command()
@click.option("--port", type=click.IntRange(0, 65535), default=9845, show_default=True, help="Port; 0 for a free one.")
@click.option("--address", default="127.0.0.1", show_default=True, help="Address to listen at; 0.0.0.0 for all.")
@click.option(
    "--every",
    "every_s",
    metavar="SECONDS",
    type=click.FloatRange(min=1),
    default=300,
    show_default=True,
    help="Pause between diagnoses.",
)
@click.option(
    "--timeout",
    "timeout_s",
    metavar="SECONDS",
    type=click.FloatRange(min=0.1),
    default=30,
    show_default=True,
    help="Time limit for reading the machine.",
)
def exporter(*, port: int, address: str, every_s: float, timeout_s: float) -> None:
    """Serve the last diagnosis of this machine to Prometheus, at http://ADDRESS:PORT/metrics.

    The machine is diagnosed at the start and after each pause. A scrape is answered at once, whatever the driver does.
    """
    try:
        from prometheus_client import CollectorRegistry, start_http_server
    except ImportError:
        raise DevkitError(
            "the package prometheus_client is missing", f"Install it with devkit: {INSTALL_EXPORTER_COMMAND}"
        ) from None
    diagnosis, registry = _LastDiagnosis(), CollectorRegistry()
    registry.register(diagnosis)
    try:
        server, _ = start_http_server(port, addr=address, registry=registry)
    except (OSError, UnicodeError) as error:  # UnicodeError: no host can have that name
        reason = error.strerror if isinstance(error, OSError) else "not the name of a host"
        raise DevkitError(
            f"cannot listen at {address}:{port}: {reason}", "Choose another --port or --address."
        ) from error
    click.echo(f"Serving http://{address}:{server.server_port}/metrics", err=True)
    while True:
        diagnosis.renew(timeout_s)
        time.sleep(every_s)
