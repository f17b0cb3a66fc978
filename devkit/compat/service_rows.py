"""The rows of the table of services that stand beside a dev container."""

from devkit.compat.rows import Row
from devkit.facts.record import keyword_record


@keyword_record
class ProfilePackage(Row):
    """A Python package that a profile adds to the dev container's image, and why."""

    profile: str
    name: str
    version: str
    because: str


@keyword_record
class ProfileImage(Row):
    """A service's image by tag, and the port that it listens on inside."""

    service: str
    image: str
    port: int


@keyword_record
class Panel(Row):
    """A panel of the dashboard. `vendor` is "" for what every machine has; `legend` may name labels as {{label}}."""

    vendor: str
    title: str
    query: str
    unit: str
    legend: str
    about: str


@keyword_record
class Alert(Row):
    """A rule that Prometheus watches while a job runs. `vendor` is "" for jobs with a GPU of any.

    In `query`, `<job>` stands for the matchers that pick the job's pods, `<pods>` for the same without braces as
    kube-state-metrics labels them, `<of METRIC>` for a metric of the job's GPUs labelled like that, `<xids KIND>` for
    the driver's fault reports of a kind. `holds` is how long it must be so, `counter` a line for the exporter's list of
    counters where its own has none.
    """

    vendor: str
    name: str
    query: str
    holds: str
    severity: str
    says: str
    advice: str
    counter: str = ""


@keyword_record
class ExporterService(Row):
    """How a vendor's exporter is found in a cluster, by what installed it: a label of its Service, the port's name."""

    vendor: str
    installed_by: str
    label: str
    value: str
    port: str
