"""Checks of the virtual machine that Windows makes for WSL: its settings, its memory, its clock."""

from collections.abc import Iterator

from devkit.doctor.applies import an_nvidia_gpu, is_in_container, known, platform_of, system_of, windows_guest
from devkit.doctor.checks.chains import WITHOUT_DRIVER
from devkit.doctor.limits import CLOCK_SKEW_S, WSL_MEMORY_BYTES
from devkit.doctor.model import Confidence, Finding, Fix, NotApplicable, Restart, Severity, Side, check
from devkit.facts.model import Facts, Platform, WslSettings
from devkit.text import human_bytes

SETTINGS_GUIDE = "https://learn.microsoft.com/en-us/windows/wsl/wsl-config"


def _settings(facts: Facts) -> WslSettings:
    if is_in_container(facts):
        raise NotApplicable("only the WSL guest and Windows show .wslconfig")
    settings = known(system_of(facts).wsl_settings)
    if settings is None:
        raise NotApplicable("there is no .wslconfig")
    return settings


@check(
    "WSL005",
    "The settings of WSL leave the GPU on",
    covers=("D01",),
    symptoms=("gpuSupport=false", "no /dev/dxg in WSL"),
    causes=("GPU001", "WSL002", *WITHOUT_DRIVER),
)
def settings_leave_gpu_on(facts: Facts) -> Iterator[Finding]:
    """The file .wslconfig does not switch the GPU off.

    Why it matters: with gpuSupport=false no guest gets /dev/dxg or NVIDIA's libraries, and nothing there says why.
    How it is seen: gpuSupport in %UserProfile%\\.wslconfig, read from Windows, or from the guest through /mnt/c.
    Source: Microsoft Learn, "Advanced settings configuration in WSL", gpuSupport.
    """
    settings = _settings(facts)
    if settings.gpu_support:
        return
    yield Finding(
        Severity.ERROR if platform_of(facts) is not Platform.WINDOWS else Severity.WARNING,
        f"{settings.path} says gpuSupport=false, so WSL passes no GPU to any distribution",
        Fix(
            "Remove the line gpuSupport=false, or set it to true, and restart WSL.",
            ("notepad.exe $env:USERPROFILE\\.wslconfig", "wsl.exe --shutdown"),
            where=Side.WINDOWS,
            restart=Restart.WSL,
            docs=SETTINGS_GUIDE,
        ),
        subject=settings.path,
        evidence=(f"{settings.path}: gpuSupport=false",),
    )


@check(
    "WSL006",
    "WSL has memory to load a model",
    covers=("D08",),
    symptoms=("Killed", "exit code 137", "Out of memory: Killed process"),
)
def wsl_has_memory(facts: Facts) -> Iterator[Finding]:
    """The virtual machine of WSL has memory and swap for the shards of a model on their way to the GPU.

    Why it matters: WSL takes half of the machine's memory unless .wslconfig says otherwise. A process that loads
    weights then ends with nothing but "Killed".
    How it is seen: the guest's memory and swap against a threshold of devkit's own, which weights of seven billion
    parameters need in bf16.
    Source: Microsoft Learn, "Advanced settings configuration in WSL", memory and swap.
    """
    system = system_of(facts)
    guest = windows_guest(facts)
    an_nvidia_gpu(facts)
    memory, swap = known(system.memory_bytes), known(guest.swap_bytes)
    if memory + swap >= WSL_MEMORY_BYTES.value:
        return
    settings = system.wsl_settings
    limit = settings.memory if isinstance(settings, WslSettings) else ""
    yield Finding(
        Severity.WARNING,
        f"WSL has {human_bytes(memory)} of memory and {human_bytes(swap)} of swap: loading a larger model ends in"
        " a kill",
        Fix(
            "Give WSL more in %UserProfile%\\.wslconfig, under [wsl2]: memory= up to what Windows can spare, and"
            " swap=16GB. Then restart WSL.",
            ("wsl.exe --shutdown",),
            where=Side.WINDOWS,
            restart=Restart.WSL,
            docs=SETTINGS_GUIDE,
        ),
        evidence=(
            f"MemTotal {human_bytes(memory)}, SwapTotal {human_bytes(swap)}",
            f".wslconfig: memory={limit}" if limit else ".wslconfig sets no memory: half of the machine's",
        ),
        confidence=Confidence.POSSIBLE,
    )


@check(
    "WSL010",
    "The guest's clock agrees with Windows's",
    covers=("K05",),
    symptoms=("certificate has expired or is not yet valid", "Release file is not valid yet"),
    causes=("HUB009",),
)
def clock_agrees_with_windows(facts: Facts) -> Iterator[Finding]:
    """The guest's clock did not stand still while the machine slept.

    Why it matters: certificates are "not yet valid", package indexes "not valid yet", and signed downloads refused.
    How it is seen: the virtual machine's hardware clock, which Windows keeps, against the guest's own.
    Source: microsoft/WSL issues 4149, 8204 and 10006.
    """
    behind = known(windows_guest(facts).clock_behind_s)
    if abs(behind) <= CLOCK_SKEW_S.value:
        return
    yield Finding(
        Severity.WARNING,
        f"the guest's clock is {abs(behind)} s {'behind' if behind > 0 else 'before'} Windows's: certificates and"
        " signed downloads are refused",
        Fix("Set the clock from the hardware clock.", ("sudo hwclock -s",), where=Side.WSL, root=True),
        evidence=(f"hardware clock minus guest's clock: {behind} s",),
        confidence=Confidence.LIKELY,
    )
