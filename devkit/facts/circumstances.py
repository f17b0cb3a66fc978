"""What distinguishes this machine and is read from a few files, for judging an error text in no time."""

from devkit.facts.values import record


@record
class Circumstances:
    """The driver, the container and the docker command of a machine."""

    driver: str
    """Version of the loaded NVIDIA driver, "" for none."""
    has_device: bool
    """Whether there is a node of an NVIDIA GPU under /dev."""
    is_wsl: bool
    container: str
    """As `Container.kind`, "" outside of one."""
    docker: str
    """What the command docker is: "docker", "podman", "snap", or "" for none."""
