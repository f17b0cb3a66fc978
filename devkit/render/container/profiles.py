"""Profiles: services beside the dev container that Compose starts on request, and their packages in its image."""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from devkit.compat.version_tables import ProfilePackage, load_tables
from devkit.errors import DevkitError
from devkit.facts.project import NO_POLICY, Policy
from devkit.release import __version__
from devkit.render.container.grafana import build_dashboard, render_dcgm_counters
from devkit.render.container.settings import ContainerSettings
from devkit.render.files import DEVCONTAINER_FOLDER, Artifact
from devkit.render.templates import render_template
from devkit.solver.plan import Plan
from devkit.text import join_words

PROFILES = ("jupyter", "monitoring", "ci")
"""Every profile, in the order of the Compose file. "ci" has no service there."""
_CI_FILES = {".github/workflows/dev-container.yml": "github.yml.j2", ".gitlab/dev-container.yml": "gitlab.yml.j2"}
_MONITORING = f"{DEVCONTAINER_FOLDER}/monitoring"
_MONITORING_FILES = {
    "prometheus.yml": "prometheus.yml.j2",
    "grafana/provisioning/datasources/prometheus.yml": "datasource.yml.j2",
    "grafana/provisioning/dashboards/devkit.yml": "dashboards.yml.j2",
}
_PORTS = {"jupyter": (8888, "JupyterLab")}
"""Profile -> a port on which the dev container itself may listen, and its label."""


def validate_profiles(names: Sequence[str]) -> tuple[str, ...]:
    """Return these profiles, each once. Raises DevkitError for an unknown one."""
    for name in names:
        if name not in PROFILES:
            raise DevkitError(f"there is no profile {name!r}", f"Choose among {', '.join(PROFILES)}.")
    return tuple(name for name in PROFILES if name in names)


def render_profile_files(plan: Plan, settings: ContainerSettings) -> Iterator[Artifact]:
    """Render the configuration of the profiles' services. Raises DevkitError for an unknown profile."""
    profiles = validate_profiles(settings.profiles)
    if "jupyter" in profiles:
        script = render_template("devcontainer/profiles/jupyter.sh.j2", devkit_version=__version__)
        yield Artifact.from_text(f"{DEVCONTAINER_FOLDER}/jupyter.sh", script, 0o755)
    for path, template in _CI_FILES.items() if "ci" in profiles else ():
        text = render_template(f"devcontainer/profiles/{template}", devkit_version=__version__)
        yield Artifact.from_text(path, text)
    if "monitoring" in profiles:
        values = {"devkit_version": __version__, **_build_context(plan)}
        for path, template in _MONITORING_FILES.items():
            yield Artifact.from_text(
                f"{_MONITORING}/{path}", render_template(f"devcontainer/profiles/{template}", **values)
            )
        panels = load_tables().profiles.panels
        if plan.vendor.value == "nvidia":
            yield Artifact.from_text(f"{_MONITORING}/counters.csv", render_dcgm_counters(panels))
        dashboard = json.dumps(build_dashboard(plan.vendor.value, panels), indent=2, ensure_ascii=False)
        yield Artifact.from_text(f"{_MONITORING}/grafana/dashboards/training.json", dashboard + "\n")


def render_profile_services(plan: Plan, settings: ContainerSettings) -> str:
    """Render the profiles' services for the Compose file, below `services:`; "" for none."""
    return "".join(
        render_template(f"devcontainer/profiles/{profile}.yml.j2", **_build_context(plan, settings.policy))
        for profile in validate_profiles(settings.profiles)
        if profile != "ci"
    )


def find_profile_volumes(settings: ContainerSettings) -> tuple[str, ...]:
    """Find the named volumes of those services."""
    return ("metrics", "grafana") if "monitoring" in settings.profiles else ()


def find_profile_packages(plan: Plan, settings: ContainerSettings) -> tuple[ProfilePackage, ...]:
    """Find the packages that the profiles add to the image; a package that the plan has stays as planned."""
    planned = plan.versions
    profiles = validate_profiles(settings.profiles)
    if not profiles:
        return ()  # most projects: their table is not read
    return tuple(row for row in load_tables().profiles.packages if row.profile in profiles and row.name not in planned)


def build_ports_attributes(profiles: Iterable[str]) -> dict[str, object]:
    """Build the portsAttributes of devcontainer.json for these profiles."""
    return {str(port): {"label": label} for name, (port, label) in _PORTS.items() if name in profiles}


def _build_context(plan: Plan, policy: Policy = NO_POLICY) -> dict[str, object]:
    rows = load_tables().profiles.images
    images = {name: replace(row, image=_resolve_image(row.image, policy)) for name, row in rows.items()}
    return {
        "vendor": plan.vendor.value,
        "exporter": images.get(f"{plan.vendor.value}-exporter"),
        "node_exporter": images["node-exporter"],
        "prometheus": images["prometheus"],
        "grafana": images["grafana"],
    }


def _resolve_image(image: str, policy: Policy) -> str:
    """Return a service's image under the policy's name for it. Raises DevkitError for one that is not allowed."""
    mirrored = policy.resolve_mirror(image)
    if not policy.allows_image(mirrored):
        raise DevkitError(
            f"a profile needs {mirrored}, which is not of an allowed registry: {join_words(policy.registries, 'or')}",
            "Leave the profile out, or name where the image may be taken from in policy.mirrors of devkit.toml.",
        )
    return mirrored
