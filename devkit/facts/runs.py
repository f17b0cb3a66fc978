"""Results of real runs: CUDA, torch and the hub (`--deep`), containers (`--trial`), `devkit finetune`, and programs that failed."""

from dataclasses import dataclass
from enum import StrEnum

from devkit.facts.values import NOT_READ, ComputeCapability, Release, Unknown


@dataclass(frozen=True)
class ProgramFailure:
    """A failed program that devkit ran or whose log it read.

    `words` are its last error lines, the newest last; `read_from` is the command or the file that they were read from.
    """

    program: str
    words: tuple[str, ...]
    read_from: str = ""
    status: int = 1
    """Its exit status; below zero the signal that ended it."""
    works_without: tuple[str, ...] = ()
    """The variables without which it works, by trial: all of them have to go."""
    set_in: tuple[str, ...] = ()
    """Lines of start-up files that set these variables, as file:line."""
    settings: tuple[str, ...] = ()
    """Settings of the program whose value its words repeat, as "key in file", and settings files that they name."""
    needed_by: str = ""
    """The file of the project that needs the program; "" for one that GPU containers need."""

    @property
    def message(self) -> str:
        """Its last words."""
        return self.words[-1] if self.words else f"it ended with status {self.status} and no message"


@dataclass(frozen=True)
class Proxy:
    """A proxy variable of this process: `url` is its address without user name and password."""

    variable: str
    url: str


@dataclass(frozen=True)
class CaBundle:
    """A variable that names the certificates to trust, and whether its file is there."""

    variable: str
    path: str
    exists: bool


@dataclass(frozen=True)
class Hub:
    """Settings of huggingface_hub on this side."""

    endpoint: str
    """HF_ENDPOINT, "" when unset."""
    is_offline: bool
    token_from: str
    """"HF_TOKEN", "file", or "" for no token. The token itself is never read into facts."""
    offline_by: str | Unknown = NOT_READ
    """The variable that switches the hub off, "" for none."""
    token_problem: str | Unknown = NOT_READ
    """Why the value cannot be a token, without the value; "" when it can, or when there is none."""
    token_path: str | Unknown = NOT_READ
    """Where the hub library keeps a token."""
    wants_hf_transfer: bool | Unknown = NOT_READ
    """Whether HF_HUB_ENABLE_HF_TRANSFER asks for the package hf_transfer."""
    proxies: tuple[Proxy, ...] | Unknown = NOT_READ
    ca_bundles: tuple[CaBundle, ...] | Unknown = NOT_READ


@dataclass(frozen=True)
class HubCall:
    """The hub's answers to real requests, with `devkit doctor --deep`. Statuses are 0 for no answer."""

    url: str
    status: int
    """Of the request for the hub's front door."""
    failure: str
    """Why there is no answer: "name", "refused", "timed-out", "certificate", "proxy", "unreachable"; "" for one."""
    message: str
    took_ms: int
    clock_ahead_s: int | Unknown
    """How far this clock runs before the hub's own, by its Date header."""
    token_status: int | Unknown
    """The status of asking whose token it is; Unknown where no token was sent."""
    model: str = ""
    """The model that the environment names, "" for none."""
    model_status: int | Unknown = NOT_READ
    model_error: str | Unknown = NOT_READ
    """The hub's own word for a refusal: "GatedRepo", "RepoNotFound"."""


class StepEnd(StrEnum):
    """The end of something that was tried in a child process."""

    WORKED = "worked"
    FAILED = "failed"
    """It returned with its own error."""
    TIMED_OUT = "timed-out"
    CRASHED = "crashed"
    """A signal ended the whole process."""
    SKIPPED = "skipped"
    """Not tried, because it is not installed or nothing is there to try it on."""


@dataclass(frozen=True)
class Step:
    """One thing that was tried: "import torch", "multiply on GPU 0".

    `detail` is the error's last words, the signal's name, or why it was not tried; "" where it worked.
    """

    name: str
    end: StepEnd
    detail: str


@dataclass(frozen=True)
class CudaCall:
    """The result of cuInit in a separate process. `code` is its return value, 0 for success."""

    code: int
    libcuda: str
    """The library that was loaded, by the process's own map; "" where the map cannot be read."""
    cuda: Release | Unknown = NOT_READ
    """The newest CUDA that this libcuda runs, by cuDriverGetVersion."""
    device_count: int | Unknown = NOT_READ
    name: str | Unknown = NOT_READ
    """The code's name as libcuda spells it, such as CUDA_ERROR_NO_DEVICE."""


@dataclass(frozen=True)
class CudaStop:
    """CUDA gave no return value: libcuda could not be loaded, or a call hung or crashed."""

    end: StepEnd
    call: str
    """What was running: "dlopen libcuda.so.1", "cuInit" …"""
    message: str
    libcuda: str


@dataclass(frozen=True)
class TorchDevice:
    """One GPU as torch sees it."""

    index: int
    name: str
    capability: ComputeCapability | Unknown
    has_bf16: bool | Unknown


@dataclass(frozen=True)
class TorchCall:
    """The results of trying torch and the packages built on it in the workload's own Python."""

    version: str
    """"" when even the import failed."""
    cuda: Release | Unknown | None
    """None for a CPU build."""
    architectures: tuple[str, ...]
    """torch.cuda.get_arch_list(): ("sm_80", "compute_90")."""
    cxx11_abi: bool | Unknown
    is_available: bool | Unknown
    devices: tuple[TorchDevice, ...]
    bitsandbytes_library: str | Unknown
    """The type name of bitsandbytes' native library; one with "Mock" in it only pretends. "" when not installed."""
    steps: tuple[Step, ...]


@dataclass(frozen=True)
class Deep:
    """The readings of the deep tier."""

    cuda: CudaCall | CudaStop | Unknown
    torch: TorchCall | Unknown | None = NOT_READ
    """None when torch is not installed."""
    hub: HubCall | Unknown = NOT_READ


class Way(StrEnum):
    """A way in which an engine starts a container, and the making of the image that is started."""

    IMAGE = "image"
    PLAIN = "plain"
    """Without a GPU."""
    RUNTIME = "runtime"
    """By the runtime nvidia."""
    GPUS = "gpus"
    """By a device request, as of `--gpus`."""
    CDI = "cdi"
    """By the name of a CDI device."""
    PROJECT = "project"
    """As a file of the project asks for it, with what it asks of the machine."""


@dataclass(frozen=True)
class Lack:
    """Something that programs of this machine have and a container lacks.

    `kind` is "names", "limit", or "ids". `setting` is what causes it, as "key in file"; "" for none.
    """

    kind: str
    words: str
    setting: str


@dataclass(frozen=True)
class Trial:
    """The end of one container that was started to see how it ends. `arguments` are those of `run` for the GPU.

    Those of the project's own begin with the command.

    What was seen inside is unknown where the container did not get that far.
    """

    engine: str
    """"docker" or "podman": the command that started it."""
    way: Way
    arguments: tuple[str, ...]
    code: int
    err: str
    ms: int
    is_timed_out: bool
    device_nodes: tuple[str, ...] | Unknown
    """NVIDIA nodes under /dev inside of it, and /dev/dxg."""
    nvidiactl: str | Unknown
    """"open", "absent" or "refused": how opening /dev/nvidiactl ended there."""
    libcuda: str | Unknown
    """"loaded", or the loader's reason why not; "" where the image's loader is not that of NVIDIA's libraries."""
    nvml: str | Unknown
    """The same of libnvidia-ml.so.1."""
    nvidia_smi: str | Unknown
    """What `nvidia-smi -L` says when it does not name a GPU; "" when it does, and when there is no such program."""
    gpu_count: int | Unknown
    """GPUs that nvidia-smi names in there, or the nodes of GPUs where there is no such program."""
    works_without: tuple[str, ...] = ()
    """The variables of the shell without which it starts, by trial."""
    settings: tuple[str, ...] = ()
    """As "key in file": of the daemon, without which it starts, by trial; or of the project, whose value the words repeat."""
    is_suspected: bool = False
    """Whether the words only name `settings`, so that no trial without them worked."""
    lacks: tuple[Lack, ...] = ()

    @property
    def is_for_gpu(self) -> bool:
        """True if the container requested the GPUs, and nothing else of the machine."""
        return self.way in (Way.RUNTIME, Way.GPUS, Way.CDI)


@dataclass(frozen=True)
class Trials:
    """The containers that were started side by side, and what could not be removed afterwards."""

    tried: tuple[Trial, ...]
    left_behind: tuple[str, ...]
    """The engine's command and a name, such as "podman devkit-trial-1-2-3-gpus"."""
    untried: tuple[str, ...] = ()
    """What the project asks for beyond them: its services by name."""
    pending: tuple[str, ...] = ()
    """What shows only where the project itself starts, with the command that tries it: "the image pg:16 (docker pull pg:16)"."""
    noted: tuple[str, ...] = ()
    """What cannot work as the project's files have it, as "setting in file:line (what is wrong: what mends it)"."""
    ended: tuple[ProgramFailure, ...] = ()
    """The project's own containers that ended with an error before, by their names, in their own words."""
