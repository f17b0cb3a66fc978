"""The Compose plugin of the docker command."""

from devkit.facts.model import Compose
from devkit.facts.values import Release, Unknown
from devkit.probe.endpoint import docker_config
from devkit.probe.host import TIMED_OUT, Host
from devkit.probe.programs import find_program

PLUGIN = "docker-compose"
PLUGIN_FOLDERS = (
    "/usr/local/lib/docker/cli-plugins",
    "/usr/local/libexec/docker/cli-plugins",
    "/usr/lib/docker/cli-plugins",
    "/usr/libexec/docker/cli-plugins",
)
"""Where the docker command looks after the user's own folder. Source: docker/cli, cli-plugins/manager."""
VERSION = ("version", "--short")
MOST_SHOWN = 60


def read_compose(host: Host) -> Compose | Unknown | None:
    """The plugin's version; None when there is no docker command, or it has no plugin."""
    if not find_program(host, "docker"):
        return None
    # The plugin answers by itself, and four times as fast: the docker command would first start every plugin there is.
    plugin = find_program(host, PLUGIN, folders=(f"{docker_config(host)}/cli-plugins", *PLUGIN_FOLDERS))
    done = host.run((plugin, *VERSION) if plugin else ("docker", "compose", *VERSION))
    if done.code == TIMED_OUT:
        return Unknown("docker compose version did not answer")
    if done.code != 0:
        return None
    try:
        return Compose(Release.read(done.out))
    except ValueError:
        return Unknown(f"docker compose version printed {done.out.strip()[:MOST_SHOWN]!r}")
