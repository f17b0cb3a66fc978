"""A throw-away container, started with a GPU: the one test that reading settings cannot replace."""

import secrets
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from devkit.facts.model import Engine, EngineKind, Facts, Smoke
from devkit.facts.values import Unknown
from devkit.probe.engine.containers import find_project_container
from devkit.probe.host import TIMED_OUT, Host, ProgramResult
from devkit.probe.machine.programs import find_program

SMOKE_NAME_PREFIX = "devkit-smoke-"
GPU_REQUEST_OPTIONS = {
    "gpus": ("--gpus", "all"),
    "cdi": ("--device", "nvidia.com/gpu=all"),
    "runtime": ("--runtime=nvidia",),
}
MAX_TRIES = 3
"""So many images are tried where the first has no shell."""
MAX_OUTPUT_CHARACTERS = 4000
_TO_CLEAN_UP_S = 8.0
_REMOVE_WITHIN_S = 6.0
_LOOK_AGAIN_S = 0.3
SMOKE_SCRIPT = """
for node in /dev/nvidia* /dev/dxg; do [ -e "$node" ] && echo "devkit node $node"; done
if [ ! -e /dev/nvidiactl ]; then echo devkit nvidiactl absent
elif (exec 3<>/dev/nvidiactl) 2>/dev/null; then echo devkit nvidiactl open
else echo devkit nvidiactl refused; fi
for folder in /usr/lib/x86_64-linux-gnu /usr/lib/aarch64-linux-gnu /usr/lib64 /usr/lib /usr/local/nvidia/lib64 \
/usr/lib/wsl/lib /run/opengl-driver/lib; do
[ -e "$folder/libcuda.so.1" ] && echo "devkit libcuda $folder/libcuda.so.1" && break
done
if command -v nvidia-smi >/dev/null 2>&1; then echo "devkit nvidia-smi $(nvidia-smi -L 2>&1 | head -n 1)"; fi
echo devkit end
"""
_NO_SHELL = ("/bin/sh: no such file", '"/bin/sh": stat', "/bin/sh: executable file not found", "exec format error")


def run_smoke(host: Host, facts: Facts, *, deadline_s: float) -> Smoke | Unknown:
    """Start a container with every GPU through this machine's own docker or podman, look around in it, remove it.

    The image is one that is already here: the project's dev container's, else another dev container's, else any with
    a shell; nothing is pulled. However this call is left, also by Ctrl-C or SIGTERM, the container is removed.
    """
    engine = facts.engine
    if not isinstance(engine, Engine):
        return Unknown("no container engine answers")
    if not engine.endpoint.url.startswith(("unix:", "npipe:")):
        return Unknown("the engine runs on another machine: run devkit there")
    if not _has_gpu(facts):
        return Unknown("this machine shows no NVIDIA GPU that could be given to a container")
    # The client's command line up to its verb, talking to the engine that was examined.
    command: tuple[str, ...] = ("docker", "--host", engine.endpoint.url) if find_program(host, "docker") else ()
    if engine.kind is EngineKind.PODMAN and find_program(host, "podman"):
        command = ("podman",)
    if not command:
        return Unknown("there is no docker or podman command on this side")
    ends_at = time.monotonic() + deadline_s
    images = _images(host, facts, engine, command)
    if not images:
        return Unknown("the engine has no image yet, and none is downloaded for this: build the dev container first")
    request = _request(facts, engine)
    for image in images[:MAX_TRIES]:
        done, left_behind = _run(host, (*command, "run"), image=image, request=request, ends_at=ends_at)
        if not any(sign in done.err for sign in _NO_SHELL):
            break
    else:
        return Unknown("no local image has a shell for this machine's processor: build the dev container first")
    reply = [line.split(" ", 2)[1:] for line in done.out.splitlines() if line.startswith("devkit ")]
    found = {fields[0]: fields[1] for fields in reply if len(fields) == 2}
    is_complete = ["end"] in reply
    unseen = Unknown("the container did not come that far")
    return Smoke(
        image=image,
        request=request,
        code=done.code,
        out=done.out[:MAX_OUTPUT_CHARACTERS],
        err=done.err[:MAX_OUTPUT_CHARACTERS],
        device_nodes=tuple(fields[1] for fields in reply if fields[0] == "node") if is_complete else unseen,
        nvidiactl=found.get("nvidiactl", unseen),
        libcuda=found.get("libcuda", "") if is_complete else unseen,
        nvidia_smi=found.get("nvidia-smi", "") if is_complete else unseen,
        timed_out=done.code == TIMED_OUT,
        left_behind=left_behind,
    )


def _has_gpu(facts: Facts) -> bool:
    if facts.gpus or (facts.wsl is not None and not isinstance(facts.wsl, Unknown) and facts.wsl.has_dxg):
        return True
    driver = facts.driver
    if isinstance(driver, Unknown):
        return False
    return bool(driver.device_nodes or (not isinstance(driver.pci_gpus, Unknown) and driver.pci_gpus))


def _images(host: Host, facts: Facts, engine: Engine, command: tuple[str, ...]) -> tuple[str, ...]:
    """Names of local images, the most telling first."""
    known: list[str] = []
    if not isinstance(engine.containers, Unknown):
        own = find_project_container(engine.containers, _workspace(facts))
        known += [own.image_id] if own is not None and isinstance(own.image_id, str) else []
    if not isinstance(engine.images, Unknown):
        known += [image.id for image in engine.images if image.is_dev_container is True and isinstance(image.id, str)]
    listed = host.run((*command, "image", "ls", "--format", "{{.ID}}"))
    return tuple(dict.fromkeys((*known, *listed.out.split()))) if listed.code == 0 else tuple(known)


def _workspace(facts: Facts) -> str:
    if isinstance(facts.storage, Unknown):
        return ""
    return next((one.path for one in facts.storage.directories if one.purpose == "workspace"), "")


def _request(facts: Facts, engine: Engine) -> str:
    """Return the form of the GPU request: that of the project's own container, else the one that the engine offers."""
    if engine.kind is EngineKind.PODMAN:
        return "cdi"
    if not isinstance(engine.containers, Unknown):
        own = find_project_container(engine.containers, _workspace(facts))
        if own is not None and own.gpu_request in ("driver", "runtime", "cdi"):
            return "gpus" if own.gpu_request == "driver" else own.gpu_request
    lists_gpus = not isinstance(engine.cdi_devices, Unknown) and bool(engine.cdi_devices)
    if engine.hook_on_path is False and lists_gpus:
        return "cdi"
    has_runtime = any(runtime.name == "nvidia" for runtime in engine.runtimes)
    return "runtime" if engine.hook_on_path is False and has_runtime else "gpus"


def _run(
    host: Host, command: tuple[str, ...], *, image: str, request: str, ends_at: float
) -> tuple[ProgramResult, str]:
    """The container's end, and its name where it could not be removed."""
    name = f"{SMOKE_NAME_PREFIX}{secrets.token_hex(4)}"
    options = (
        "--rm",
        "--name",
        name,
        "--pull=never",
        "--network=none",
        "--entrypoint=/bin/sh",
        *GPU_REQUEST_OPTIONS[request],
    )
    if request == "runtime":
        options = (*options, "--env=NVIDIA_VISIBLE_DEVICES=all", "--env=NVIDIA_DRIVER_CAPABILITIES=compute,utility")
    left_s = max(1.0, ends_at - time.monotonic() - _TO_CLEAN_UP_S)
    removed = False
    with _polite_end():
        try:
            done = host.run((*command, *options, image, "-c", SMOKE_SCRIPT), deadline_s=left_s)
            # Ended by itself, it was removed by itself; what never started may still be there by name.
            removed = done.code == 0
        finally:
            if not removed:
                removed = _remove(host, command[:-1], name)
    return done, "" if removed else name


@contextmanager
def _polite_end() -> Iterator[None]:
    """Let SIGTERM end the block as Ctrl-C does. Signals can be caught on the main thread alone."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _remove(host: Host, command: tuple[str, ...], name: str) -> bool:
    """Kill and remove the container, and look twice: an engine may still be making it while its client is gone."""
    ends_at = time.monotonic() + _REMOVE_WITHIN_S
    quiet = 0
    while quiet < 2 and time.monotonic() < ends_at:
        host.run((*command, "rm", "--force", "--volumes", name), deadline_s=_REMOVE_WITHIN_S)
        listed = host.run((*command, "ps", "--all", "--quiet", "--filter", f"name={name}"), deadline_s=_REMOVE_WITHIN_S)
        quiet = quiet + 1 if listed.code == 0 and not listed.out.strip() else 0
        if quiet < 2:
            time.sleep(_LOOK_AGAIN_S)
    return quiet == 2
