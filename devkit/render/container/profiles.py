"""Profiles: services beside the dev container that Compose starts when asked, and what they need in its image."""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from devkit import __version__
from devkit.compat.version_tables import ProfilePackage, load_tables
from devkit.errors import DevkitError
from devkit.facts.project import NO_POLICY, Policy
from devkit.render.container.grafana import build_dashboard, render_dcgm_counters
from devkit.render.container.settings import ContainerSettings
from devkit.render.devkit_toml import resolve_allowed_image
from devkit.render.files import DEVCONTAINER_FOLDER, Artifact
from devkit.render.templates import render_template
from devkit.solver.plan import Plan

_MONITORING = f"{DEVCONTAINER_FOLDER}/monitoring"
_PORTS = {"jupyter": (8888, "JupyterLab")}
"""Profile -> a port that the dev container itself may listen on, and what to call it."""


def render_profile_files(plan: Plan, settings: ContainerSettings) -> Iterator[Artifact]:
    """What the services of the chosen profiles read. Raises DevkitError for a profile that does not exist."""
    for profile in validate_profiles(settings.profiles):
        yield from _ARTIFACTS[profile](plan)


def validate_profiles(names: Sequence[str]) -> tuple[str, ...]:
    """These profiles, each once. Raises DevkitError for one that does not exist."""
    for name in names:
        if name not in _ARTIFACTS:
            raise DevkitError(f"there is no profile {name!r}", f"Choose among {', '.join(_ARTIFACTS)}.")
    return tuple(name for name in _ARTIFACTS if name in names)


def find_profile_packages(plan: Plan, settings: ContainerSettings) -> tuple[ProfilePackage, ...]:
    """What the chosen profiles add to the image; a package that the plan has stays as planned."""
    planned = dict(plan.packages)
    chosen = validate_profiles(settings.profiles)
    if not chosen:
        return ()  # most projects: their table is not read
    return tuple(row for row in load_tables().profiles.packages if row.profile in chosen and row.name not in planned)


def render_profile_services(plan: Plan, settings: ContainerSettings) -> str:
    """The services of the chosen profiles as they stand in the Compose file under `services:`; "" for none."""
    shown = [
        render_template(f"devcontainer/profiles/{profile}.yml.j2", **_images(plan, settings.policy))
        for profile in validate_profiles(settings.profiles)
    ]
    return "".join(shown)


def find_profile_volumes(settings: ContainerSettings) -> tuple[str, ...]:
    """The named volumes of those services."""
    return ("metrics", "grafana") if "monitoring" in settings.profiles else ()


def build_ports_attributes(profiles: Iterable[str]) -> dict[str, object]:
    """What editors call the ports of the dev container that belong to these profiles."""
    return {str(port): {"label": label} for name, (port, label) in _PORTS.items() if name in profiles}


def _images(plan: Plan, policy: Policy = NO_POLICY) -> dict[str, object]:
    rows = load_tables().profiles.images
    images = {name: replace(row, image=resolve_allowed_image(row.image, policy)) for name, row in rows.items()}
    exporter = images.get(f"{plan.vendor.value}-exporter")
    return {
        "vendor": plan.vendor.value,
        "exporter": exporter,
        "node_exporter": images["node-exporter"],
        "prometheus": images["prometheus"],
        "grafana": images["grafana"],
    }


def _jupyter(_plan: Plan) -> Iterator[Artifact]:
    script = render_template("devcontainer/profiles/jupyter.sh.j2", devkit_version=__version__)
    yield Artifact.from_text(f"{DEVCONTAINER_FOLDER}/jupyter.sh", script, 0o755)


def _monitoring(plan: Plan) -> Iterator[Artifact]:
    files = {
        "prometheus.yml": "prometheus.yml.j2",
        "grafana/provisioning/datasources/prometheus.yml": "datasource.yml.j2",
        "grafana/provisioning/dashboards/devkit.yml": "dashboards.yml.j2",
    }
    for path, template in files.items():
        text = render_template(f"devcontainer/profiles/{template}", devkit_version=__version__, **_images(plan))
        yield Artifact.from_text(f"{_MONITORING}/{path}", text)
    if plan.vendor.value == "nvidia":
        yield Artifact.from_text(f"{_MONITORING}/counters.csv", render_dcgm_counters(load_tables().profiles.panels))
    shown = json.dumps(build_dashboard(plan.vendor.value, load_tables().profiles.panels), indent=2, ensure_ascii=False)
    yield Artifact.from_text(f"{_MONITORING}/grafana/dashboards/training.json", shown + "\n")


_ARTIFACTS: dict[str, Callable[[Plan], Iterator[Artifact]]] = {"jupyter": _jupyter, "monitoring": _monitoring}
"""Every profile, in the order of the Compose file."""
