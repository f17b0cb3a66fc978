"""Profiles: services beside the dev container that Compose starts on request, and their packages in its image."""

from collections.abc import Iterable, Iterator, Sequence

from devkit.compat.version_tables import ProfilePackage, load_tables
from devkit.errors import DevkitError
from devkit.release import __version__
from devkit.render.container.settings import ContainerSettings
from devkit.render.files import DEVCONTAINER_FOLDER, Artifact
from devkit.render.templates import render_template
from devkit.solver.plan import Plan

PROFILES = ("jupyter", "ci")
"""Every profile, in the order of the Compose file. "ci" has no service there."""
_CI_FILES = {".github/workflows/dev-container.yml": "github.yml.j2", ".gitlab/dev-container.yml": "gitlab.yml.j2"}
_PORTS = {"jupyter": (8888, "JupyterLab")}
"""Profile -> a port on which the dev container itself may listen, and its label."""


def validate_profiles(names: Sequence[str]) -> tuple[str, ...]:
    """Return these profiles, each once. Raises DevkitError for an unknown one."""
    for name in names:
        if name not in PROFILES:
            raise DevkitError(f"there is no profile {name!r}", f"Choose among {', '.join(PROFILES)}.")
    return tuple(name for name in PROFILES if name in names)


def render_profile_files(_plan: Plan, settings: ContainerSettings) -> Iterator[Artifact]:
    """Render the configuration of the profiles' services. Raises DevkitError for an unknown profile."""
    profiles = validate_profiles(settings.profiles)
    if "jupyter" in profiles:
        script = render_template("devcontainer/profiles/jupyter.sh.j2", devkit_version=__version__)
        yield Artifact.from_text(f"{DEVCONTAINER_FOLDER}/jupyter.sh", script, 0o755)
    for path, template in _CI_FILES.items() if "ci" in profiles else ():
        text = render_template(f"devcontainer/profiles/{template}", devkit_version=__version__)
        yield Artifact.from_text(path, text)


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
