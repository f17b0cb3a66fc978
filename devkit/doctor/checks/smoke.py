"""Judges the container that was really started with a GPU."""

from collections.abc import Iterator

from devkit.doctor.applies import an_nvidia_gpu, is_in_wsl, known
from devkit.doctor.machine import TROUBLESHOOTING, host_side
from devkit.doctor.model import Confidence, Finding, Fix, Severity, Side, check
from devkit.facts.model import Facts, Smoke
from devkit.facts.values import Unknown

_LONGEST = 200
_SMI_FAILURES = ("Failed to initialize", "couldn't communicate", "No devices", "Unknown Error", "Unable to determine")


@check(
    "CTK013",
    "A container that asks for the GPU gets it",
    covers=("F12", "F16", "F18"),
    symptoms=("nvidia-container-cli: initialization error: driver error: failed to process request",),
)
def probe_container_gets_gpu(facts: Facts) -> Iterator[Finding]:
    """A throw-away container, started with a request for every GPU, has the device nodes, libcuda and a working NVML.

    Why it matters: settings may all look right. What counts is whether a container starts, and what it finds inside.
    How it is seen: only with --smoke: devkit starts a container from an image that is already here, looks for
    /dev/nvidiactl, libcuda.so.1 and `nvidia-smi -L`, and removes it.
    Source: NVIDIA, Container Toolkit install guide, "Running a Sample Workload".
    """
    smoke = known(facts.smoke)
    an_nvidia_gpu(facts)
    if smoke.left_behind and isinstance(smoke.left_behind, str):
        yield _left_behind(smoke.left_behind)
    if smoke.timed_out is True:
        yield _failed(facts, smoke, "did not end in time", Confidence.LIKELY)
    elif smoke.code != 0:
        yield _refused(facts, smoke)
    else:
        yield from _looked_around(facts, smoke)


def _evidence(smoke: Smoke) -> tuple[str, ...]:
    last = smoke.err.strip().rpartition("\n")[2][:_LONGEST]
    return (f"{_command(smoke)}: status {smoke.code}", *((last,) if last else ()))


def _command(smoke: Smoke) -> str:
    options = {"cdi": "--device nvidia.com/gpu=all", "runtime": "--runtime=nvidia"}.get(smoke.request, "--gpus all")
    return f"run {options} {smoke.image}"


def _refused(facts: Facts, smoke: Smoke) -> Finding:
    """The engine's own words, explained where they are known."""
    from devkit.doctor.signatures import matches

    found = matches(smoke.err)
    if not found:
        return _failed(facts, smoke, f"does not start: {' '.join(smoke.err.split())[:_LONGEST]}", Confidence.CERTAIN)
    best = found[0]
    return Finding(
        Severity.ERROR,
        f"a container that asks for the GPU does not start: {best.cause.rstrip('.')}",
        best.fix,
        subject=smoke.image,
        evidence=_evidence(smoke),
        confidence=best.confidence,
        follows_from=None,
    )


def _looked_around(facts: Facts, smoke: Smoke) -> Iterator[Finding]:
    if isinstance(smoke.device_nodes, Unknown) or isinstance(smoke.nvidiactl, Unknown):
        return
    has_node = "/dev/dxg" in smoke.device_nodes if is_in_wsl(facts) else smoke.nvidiactl != "absent"
    smi = smoke.nvidia_smi if isinstance(smoke.nvidia_smi, str) else ""
    if not has_node:
        yield _failed(facts, smoke, "starts, but finds no GPU in it", Confidence.CERTAIN)
    elif smoke.nvidiactl == "refused" and not is_in_wsl(facts):
        yield _failed(facts, smoke, "starts, but may not open /dev/nvidiactl", Confidence.CERTAIN)
    elif smoke.libcuda == "":
        yield _failed(facts, smoke, "gets the GPU, but not the driver's library libcuda.so.1", Confidence.LIKELY)
    elif any(sign in smi for sign in _SMI_FAILURES):
        yield _failed(facts, smoke, f"gets the GPU, but nvidia-smi in it says: {smi[:_LONGEST]}", Confidence.CERTAIN)


_ADVICE = {
    "starts, but finds no GPU in it": (
        "Where settings look right, write the CDI specification anew and ask by its name.",
        ("sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml", "docker run --device nvidia.com/gpu=all ..."),
    ),
    "starts, but may not open /dev/nvidiactl": (
        "The device rules or SELinux refuse it: see no-cgroups in config.toml, and try --security-opt=label=disable.",
        ("nvidia-ctk config", "getenforce"),
    ),
    "gets the GPU, but not the driver's library libcuda.so.1": (
        "Ask for the capabilities compute and utility.",
        ("NVIDIA_DRIVER_CAPABILITIES=compute,utility",),
    ),
}


def _failed(facts: Facts, smoke: Smoke, what: str, confidence: Confidence) -> Finding:
    summary, commands = _ADVICE.get(
        what, ("Run the same by hand and read the engine's answer.", (f"docker {_command(smoke)} nvidia-smi",))
    )
    return Finding(
        Severity.ERROR,
        f"a container that asks for the GPU {what}",
        Fix(summary, commands, where=host_side(facts), docs=TROUBLESHOOTING),
        subject=smoke.image,
        evidence=(*_evidence(smoke), *_seen(smoke)),
        confidence=confidence,
    )


def _seen(smoke: Smoke) -> Iterator[str]:
    if not isinstance(smoke.device_nodes, Unknown):
        yield f"nodes: {', '.join(smoke.device_nodes) or 'none'}; /dev/nvidiactl: {smoke.nvidiactl}"
        yield f"libcuda.so.1: {smoke.libcuda or 'not there'}; nvidia-smi: {smoke.nvidia_smi or 'not there'}"


def _left_behind(name: str) -> Finding:
    return Finding(
        Severity.WARNING,
        f"the probe container {name} could not be removed",
        Fix("Remove it.", (f"docker rm --force {name}",), where=Side.HOST),
        subject=name,
        evidence=(f"docker ps --all still lists {name}",),
    )
