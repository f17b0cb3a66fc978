"""What a trial knows: the project and its deadline, the clients of engines, and how a container that was started is told."""

import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from devkit.facts.runs import Trial, Way
from devkit.facts.values import Unknown
from devkit.probe.host import TIMED_OUT, Host, ProgramResult
from devkit.trial.builds import Build
from devkit.trial.programs import LookUp
from devkit.trial.project import MAX_CONTAINERS, MAX_REHEARSED, Request

LABEL = "devkit.trial"
"""Of every container, network and image of a trial, so that the next one finds what a killed one left."""
PREFIX = "devkit-trial"
MAX_LOOK_UPS = 12
"""Of a project's images; services come first."""
MAX_STARTED = MAX_CONTAINERS + MAX_REHEARSED + MAX_LOOK_UPS
SHORTEST_S = 1.0
"""With less time left nothing is started."""
MAX_OUTPUT_CHARACTERS = 4000
OPTIONS = ("--rm", "--pull=never", "--read-only", "--cap-drop=ALL", "--cap-add=DAC_OVERRIDE")
SHELL = "--entrypoint=/bin/sh"
NO_NETWORK = "--network=none"


@dataclass(frozen=True)
class Client:
    """A command line up to its verb, and the ways that are set up for its engine."""

    name: str
    command: tuple[str, ...]
    ways: tuple[Way, ...]
    compose: tuple[str, ...] = ()
    """The Compose of this engine, up to its verb; empty where there is none."""
    settings: tuple[tuple[str, str], ...] | None = None
    """File and key of what is set for this engine; None where its containers are not on this system."""
    heeds_seccomp: bool = True
    """Whether its runtime obeys a profile: gVisor and Kata Containers do not."""


@dataclass(frozen=True)
class Run:
    """The trials of a machine and a project: their deadline, and all that is known before the first one."""

    host: Host
    ends_at: float
    image: bytes
    owner: str
    project: str
    """Its folder."""
    config: Mapping[str, Any]
    """It as Compose resolves it."""
    run_arguments: tuple[tuple[str, ...], ...]
    """Of the project's dev containers."""
    prerequisites: tuple[tuple[str, str], ...]
    """Kinds and names of what has to exist before the project starts."""
    requests: tuple[Request, ...]
    """All that its dev containers say to `docker run`."""
    rehearsal: Mapping[str, Any] = field(default_factory=dict)
    """It as a whole, of stand-ins; empty where Docker's Compose does not start it."""
    look_ups: tuple[LookUp, ...] = ()
    """Of images that are here."""
    builds: tuple[Build, ...] = ()
    images: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Those of the project that are here, as the engine describes them."""
    pending: tuple[str, ...] = ()
    """As Trials has it."""

    @property
    def variables(self) -> list[str]:
        """Variables of the shell that a docker command reads, except DOCKER_CONFIG, without which no plugin is found."""
        return [name for name in self.host.env if name.startswith("DOCKER_") and name != "DOCKER_CONFIG"]

    def ask(self, *words: str, without: Collection[str] = (), share: float = 1.0) -> ProgramResult:
        """Run a client within a share of the time that is left."""
        left_s = self.ends_at - time.monotonic()
        return self.host.run(words, deadline_s=max(0.1, left_s * share), without=without)


@contextmanager
def hold_in_memory(content: bytes) -> Iterator[str]:
    """Yield the path of a file that is gone with this process. Raises OSError where it cannot be that large."""
    file = os.memfd_create(PREFIX)
    try:
        with os.fdopen(os.dup(file), "wb") as writer:
            writer.write(content)
        yield f"/proc/{os.getpid()}/fd/{file}"
    finally:
        os.close(file)


def isolate(client: Client, ask: Callable[[str], ProgramResult]) -> ProgramResult:
    """Start a container without a network, and with the host's where this machine refuses Podman a separate one."""
    done = ask(NO_NETWORK)
    if done.code in (0, TIMED_OUT) or client.name != "podman":
        return done
    usual = ask("--network=host")
    return usual if usual.code == 0 else done


def list_said(done: ProgramResult) -> list[list[str]]:
    """List the names and values that the script printed in a container."""
    return [line.split(" ", 2)[1:] for line in done.out.splitlines() if line.startswith("devkit ")]


def make_trial(client: Client, way: Way, done: ProgramResult, ms: int, *, arguments: tuple[str, ...] = ()) -> Trial:
    """Tell how a container ended, and what the script printed in it."""
    said = list_said(done)
    found = {fields[0]: fields[1] for fields in said if len(fields) == 2}
    unseen = Unknown("the container did not get that far")
    is_whole = ["end"] in said
    return Trial(
        engine=client.name,
        way=way,
        arguments=arguments,
        code=done.code,
        err=done.err[:MAX_OUTPUT_CHARACTERS],
        ms=ms,
        is_timed_out=done.code == TIMED_OUT,
        device_nodes=tuple(fields[1] for fields in said if fields[0] == "node") if is_whole else unseen,
        nvidiactl=found.get("nvidiactl", unseen),
        libcuda=found.get("libcuda", "") if is_whole else unseen,
        nvml=found.get("nvml", "") if is_whole else unseen,
        nvidia_smi=found.get("nvidia-smi", "") if is_whole else unseen,
        gpu_count=int(found.get("gpus", "0")) if is_whole else unseen,
    )
