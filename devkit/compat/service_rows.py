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
