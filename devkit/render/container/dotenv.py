"""The .env file beside the Compose file, kept out of version control, and .env.example, which explains its variables."""

import re
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from devkit import __version__
from devkit.errors import DevkitError
from devkit.render.container.network import may_need_login
from devkit.render.container.settings import ContainerSettings
from devkit.render.files import DEVCONTAINER_FOLDER, Artifact
from devkit.solver.plan import Plan, Vendor

_HEAD = f"""\
# Written by devkit {__version__}. What each line of .env may say; none of them is needed.
#
# Copy a line into .devcontainer/.env and take the mark off. .env is this host's own and stays out of version control.
# gpu.sh marks the lines that it writes there, and never touches another one.
"""


def _for_profile(name: str) -> Callable[[Plan, ContainerSettings], bool]:
    return lambda _plan, settings: name in settings.profiles


@dataclass(frozen=True)
class EnvVariable:
    """A variable of .env, with an example, its meaning, and a predicate for the projects whose files use it."""

    name: str
    example: str
    meaning: str
    is_used: Callable[[Plan, ContainerSettings], bool] = lambda _plan, _settings: True


ENV_VARIABLES = (
    EnvVariable("DEVKIT_GPU", "cpu", "How the container gets its GPU, as the head of gpu.sh lists it."),
    EnvVariable(
        "DEVKIT_DEVICES",
        "0,2",
        "The GPUs to pass on from this host: indices or UUIDs with commas between, or all. gpu.sh reads it.",
        lambda plan, _settings: plan.vendor is not Vendor.CPU,
    ),
    EnvVariable("DEVKIT_GPU_FILE", "gpu.local", "gpu.sh's own mark that it wrote gpu.local.yml."),
    EnvVariable(
        "DEVKIT_GPU_GID",
        "44",
        "The group on this host that may open the GPU's device nodes.",
        lambda plan, _settings: plan.vendor.value == "rocm",
    ),
    EnvVariable(
        "DEVKIT_PROJECT", "my-project", "The name of the Compose project: the front of container and volume names."
    ),
    EnvVariable("DEVKIT_UID", "1000", "The number of the user inside: yours, so that files belong to both."),
    EnvVariable("DEVKIT_GID", "1000", "The number of that user's group."),
    EnvVariable("DEVKIT_USERNS", "keep-id", "How rootless Podman maps users; empty for Docker."),
    EnvVariable("DEVKIT_SHM_SIZE", "16gb", "The limit of shared memory: PyTorch's loader workers and NCCL need it."),
    EnvVariable(
        "DEVKIT_WHEELHOUSE",
        "'/srv/wheels'",
        "The folder of wheels that the image is built from.",
        lambda _plan, settings: settings.uses_wheelhouse,
    ),
    EnvVariable(
        "DEVKIT_BASE_IMAGE",
        "localhost/devkit-base/my-project:0123456789ab-amd64",
        "The image to build on, with system packages in it, as `load.sh` of a bundle loaded it.",
        lambda _plan, settings: settings.uses_wheelhouse,
    ),
    EnvVariable(
        "DEVKIT_NETRC",
        "'/home/me/.netrc'",
        "The file with the login for mirrors; the build sees it, the image does not keep it.",
        lambda _plan, settings: may_need_login(settings),
    ),
    EnvVariable(
        "DEVKIT_JUPYTER_PORT", "8889", "JupyterLab's port on this host, where 8888 is taken.", _for_profile("jupyter")
    ),
    EnvVariable(
        "DEVKIT_GRAFANA_PORT", "3001", "Grafana's port on this host, where 3000 is taken.", _for_profile("monitoring")
    ),
    EnvVariable(
        "DEVKIT_PROMETHEUS_PORT",
        "9091",
        "Prometheus's port on this host, where 9090 is taken.",
        _for_profile("monitoring"),
    ),
    EnvVariable(
        "COMPOSE_PROFILES",
        "jupyter,monitoring",
        "Start these services together with the dev container, also from an editor.",
        lambda _plan, settings: bool(settings.profiles),
    ),
    EnvVariable("HTTP_PROXY", "http://proxy.example.org:3128", "The proxy for plain HTTP, at build and inside."),
    EnvVariable("HTTPS_PROXY", "http://proxy.example.org:3128", "The proxy for HTTPS."),
    EnvVariable("ALL_PROXY", "socks5://proxy.example.org:1080", "The proxy for everything else."),
    EnvVariable("NO_PROXY", "localhost,.example.org", "Hosts that are reached without a proxy."),
)
"""In the order of .env.example."""


def render_env_example(plan: Plan, settings: ContainerSettings) -> Iterator[Artifact]:
    """Render .env.example, which is committed."""
    lines = [_HEAD]
    for variable in ENV_VARIABLES:
        if variable.is_used(plan, settings):
            meaning = textwrap.wrap(variable.meaning, width=110, initial_indent="# ", subsequent_indent="# ")
            lines.append("\n".join([*meaning, f"#{variable.name}={variable.example}", ""]))
    yield Artifact.from_text(f"{DEVCONTAINER_FOLDER}/.env.example", "\n".join(lines))


def parse_env_value(text: str, name: str) -> str:
    """Return the value of `name` without its quotes, "" when it is not set; the last line counts, as in Compose."""
    values = re.findall(rf"^(?:export )?{re.escape(name)}=(.*)$", text, re.MULTILINE)
    value = str(values[-1]).strip() if values else ""
    return value[1:-1] if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"" else value


def set_env_value(text: str, name: str, value: str) -> str:
    """Return `text` with `name` set to `value`, every other line as it was.

    Compose takes text between single quotes literally, and has no way to write a single quote there. A backslash at the
    end would escape the closing quote.
    Raises: DevkitError for a value with a single quote, a line break or a backslash at its end.
    """
    if "'" in value or "\n" in value or "\r" in value or value.endswith("\\"):
        raise DevkitError(
            f"the path {value!r} cannot be written to an .env file",
            "Use one without single quotes, line breaks, and a backslash at its end.",
        )
    line = f"{name}='{value}'"
    pattern = re.compile(rf"^(?:export )?{re.escape(name)}=.*$", re.MULTILINE)
    if pattern.search(text):
        return pattern.sub(lambda _: line, text)
    return f"{text}{'' if not text or text.endswith(chr(10)) else chr(10)}{line}\n"
