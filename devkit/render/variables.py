"""Every variable that the Compose file and the host's script take from .env, and .env.example, which explains them."""

import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from devkit import __version__
from devkit.render.artifact import FOLDER, Artifact
from devkit.render.mirrors import may_need_login
from devkit.render.settings import Settings
from devkit.solver.model import Plan, Vendor

_HEAD = f"""\
# Written by devkit {__version__}. What each line of .env may say; none of them is needed.
#
# Copy a line into .devcontainer/.env and take the mark off. .env is this host's own and stays out of version control.
# gpu.sh keeps what it finds out between two marked lines there, and never touches a line outside of them.
"""


def _always(_plan: Plan, _settings: Settings) -> bool:
    return True


def _for_gpus(plan: Plan, _settings: Settings) -> bool:
    return plan.vendor is not Vendor.CPU


def _for_profile(name: str) -> Callable[[Plan, Settings], bool]:
    return lambda _plan, settings: name in settings.profiles


@dataclass(frozen=True)
class Variable:
    """A variable, a value as an example, what it means, and the projects whose files use it."""

    name: str
    example: str
    meaning: str
    used: Callable[[Plan, Settings], bool] = _always


VARIABLES = (
    Variable("DEVKIT_GPU", "cpu", "How the container gets its GPU: the part of a gpu.*.yml file's name in the middle."),
    Variable(
        "DEVKIT_DEVICES",
        "0,2",
        "The GPUs to pass on from this host: indices or UUIDs with commas between, or all. gpu.sh reads it.",
        _for_gpus,
    ),
    Variable(
        "DEVKIT_OVERLAY",
        ".local",
        "gpu.sh's own mark that it wrote an overlay for DEVKIT_DEVICES.",
    ),
    Variable(
        "DEVKIT_GPU_GID",
        "44",
        "The group on this host that may open the GPU's device nodes.",
        lambda plan, _settings: plan.vendor.value == "rocm",
    ),
    Variable(
        "DEVKIT_PROJECT", "my-project", "The name of the Compose project: the front of container and volume names."
    ),
    Variable("DEVKIT_UID", "1000", "The number of the user inside: yours, so that files belong to both."),
    Variable("DEVKIT_GID", "1000", "The number of that user's group."),
    Variable("DEVKIT_USERNS", "keep-id", "How rootless Podman maps users; empty for Docker."),
    Variable("DEVKIT_SHM_SIZE", "16gb", "The limit of shared memory: PyTorch's loader workers and NCCL need it."),
    Variable(
        "DEVKIT_WHEELHOUSE",
        "'/srv/wheels'",
        "The folder of wheels that the image is built from.",
        lambda _plan, settings: settings.uses_wheelhouse,
    ),
    Variable(
        "DEVKIT_BASE_IMAGE",
        "localhost/devkit-base/my-project:0123456789ab-amd64",
        "The image to build on, with system packages in it, as `load.sh` of a bundle loaded it.",
        lambda _plan, settings: settings.uses_wheelhouse,
    ),
    Variable(
        "DEVKIT_NETRC",
        "'/home/me/.netrc'",
        "The file with the login for mirrors; the build sees it, the image does not keep it.",
        lambda _plan, settings: may_need_login(settings),
    ),
    Variable(
        "DEVKIT_JUPYTER_PORT", "8889", "JupyterLab's port on this host, where 8888 is taken.", _for_profile("jupyter")
    ),
    Variable(
        "DEVKIT_GRAFANA_PORT", "3001", "Grafana's port on this host, where 3000 is taken.", _for_profile("monitoring")
    ),
    Variable(
        "DEVKIT_PROMETHEUS_PORT",
        "9091",
        "Prometheus's port on this host, where 9090 is taken.",
        _for_profile("monitoring"),
    ),
    Variable(
        "COMPOSE_PROFILES",
        "jupyter,monitoring",
        "Start these services together with the dev container, also from an editor.",
        lambda _plan, settings: bool(settings.profiles),
    ),
    Variable("HTTP_PROXY", "http://proxy.example.org:3128", "The proxy for plain HTTP, at build and inside."),
    Variable("HTTPS_PROXY", "http://proxy.example.org:3128", "The proxy for HTTPS."),
    Variable("ALL_PROXY", "socks5://proxy.example.org:1080", "The proxy for everything else."),
    Variable("NO_PROXY", "localhost,.example.org", "Hosts that are reached without a proxy."),
)
"""In the order of .env.example."""


def env_example_artifacts(plan: Plan, settings: Settings) -> Iterator[Artifact]:
    """.env.example, which is committed, so that nobody has to search for the names."""
    lines = [_HEAD]
    for variable in VARIABLES:
        if variable.used(plan, settings):
            meaning = textwrap.wrap(variable.meaning, width=110, initial_indent="# ", subsequent_indent="# ")
            lines.append("\n".join([*meaning, f"#{variable.name}={variable.example}", ""]))
    yield Artifact.text(f"{FOLDER}/.env.example", "\n".join(lines))
