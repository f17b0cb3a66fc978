"""Profiles: services beside the dev container that Compose starts when asked, and what they need in its image."""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from devkit import __version__
from devkit.compat.load import tables
from devkit.compat.service_rows import ProfilePackage
from devkit.errors import DevkitError
from devkit.facts.policy import NO_POLICY, Policy
from devkit.render.artifact import FOLDER, Artifact
from devkit.render.dashboard import dashboard, dcgm_counters
from devkit.render.policy import allowed_image
from devkit.render.resources import rendered
from devkit.render.settings import Settings
from devkit.solver.model import Plan

_MONITORING = f"{FOLDER}/monitoring"
_PORTS = {"jupyter": (8888, "JupyterLab")}
"""Profile -> a port that the dev container itself may listen on, and what to call it."""


def profile_artifacts(plan: Plan, settings: Settings) -> Iterator[Artifact]:
    """What the services of the chosen profiles read. Raises DevkitError for a profile that does not exist."""
    for profile in chosen_profiles(settings.profiles):
        yield from _ARTIFACTS[profile](plan)


def chosen_profiles(names: Sequence[str]) -> tuple[str, ...]:
    """These profiles, each once. Raises DevkitError for one that does not exist."""
    for name in names:
        if name not in _ARTIFACTS:
            raise DevkitError(f"there is no profile {name!r}", f"Choose among {', '.join(_ARTIFACTS)}.")
    return tuple(name for name in _ARTIFACTS if name in names)


def profile_packages(plan: Plan, settings: Settings) -> tuple[ProfilePackage, ...]:
    """What the chosen profiles add to the image; a package that the plan has stays as planned."""
    planned = dict(plan.packages)
    chosen = chosen_profiles(settings.profiles)
    if not chosen:
        return ()  # most projects: their table is not read
    return tuple(row for row in tables().profiles.packages if row.profile in chosen and row.name not in planned)


def profile_services(plan: Plan, settings: Settings) -> str:
    """The services of the chosen profiles as they stand in the Compose file under `services:`; "" for none."""
    shown = [
        rendered(f"devcontainer/profiles/{profile}.yml.j2", **_images(plan, settings.policy))
        for profile in chosen_profiles(settings.profiles)
    ]
    return "".join(shown)


def profile_volumes(settings: Settings) -> tuple[str, ...]:
    """The named volumes of those services."""
    return ("metrics", "grafana") if "monitoring" in settings.profiles else ()


def labelled_ports(profiles: Iterable[str]) -> dict[str, object]:
    """What editors call the ports of the dev container that belong to these profiles."""
    return {str(port): {"label": label} for name, (port, label) in _PORTS.items() if name in profiles}


def _images(plan: Plan, policy: Policy = NO_POLICY) -> dict[str, object]:
    rows = tables().profiles.images
    images = {name: replace(row, image=allowed_image(row.image, policy)) for name, row in rows.items()}
    exporter = images.get(f"{plan.vendor.value}-exporter")
    return {
        "vendor": plan.vendor.value,
        "exporter": exporter,
        "node_exporter": images["node-exporter"],
        "prometheus": images["prometheus"],
        "grafana": images["grafana"],
    }


def _jupyter(_plan: Plan) -> Iterator[Artifact]:
    script = rendered("devcontainer/profiles/jupyter.sh.j2", devkit_version=__version__)
    yield Artifact.text(f"{FOLDER}/jupyter.sh", script, 0o755)


def _monitoring(plan: Plan) -> Iterator[Artifact]:
    files = {
        "prometheus.yml": "prometheus.yml.j2",
        "grafana/provisioning/datasources/prometheus.yml": "datasource.yml.j2",
        "grafana/provisioning/dashboards/devkit.yml": "dashboards.yml.j2",
    }
    for path, template in files.items():
        text = rendered(f"devcontainer/profiles/{template}", devkit_version=__version__, **_images(plan))
        yield Artifact.text(f"{_MONITORING}/{path}", text)
    if plan.vendor.value == "nvidia":
        yield Artifact.text(f"{_MONITORING}/counters.csv", dcgm_counters(tables().profiles.panels))
    shown = json.dumps(dashboard(plan.vendor.value, tables().profiles.panels), indent=2, ensure_ascii=False)
    yield Artifact.text(f"{_MONITORING}/grafana/dashboards/training.json", shown + "\n")


_ARTIFACTS: dict[str, Callable[[Plan], Iterator[Artifact]]] = {"jupyter": _jupyter, "monitoring": _monitoring}
"""Every profile, in the order of the Compose file."""
