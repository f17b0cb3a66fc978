"""Errors of shared memory, limits, NCCL and machines that work together."""

from devkit.doctor.model import Confidence, Fix, Side
from devkit.doctor.signatures.fixes import MORE_SHM
from devkit.doctor.signatures.model import Signature

_NCCL_GUIDE = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html"

SEVERAL: tuple[Signature, ...] = (
    Signature(
        "CON003",
        (
            "is killed by signal: Bus error. It is possible that dataloader's workers are out of shared memory",
            "is killed by signal: Bus error",
            "Unexpected bus error encountered in worker. This might be caused by insufficient shared memory (shm)",
            "unable to open shared memory object </torch_",
            "unable to write to file </torch_",
            "unable to allocate shared memory(shm) for file",
            "unable to mmap {bytes:number} bytes from file </torch_",
            "dataloader's workers are out of shared memory",
        ),
        "the container's shared memory is too small for the data loader's workers; Docker gives 64 MB",
        MORE_SHM,
        "pytorch/pytorch issue 5040",
        entry="I01",
        also=("CON009", "PRJ020"),
    ),
    Signature(
        "CON003",
        (
            "Call to posix_fallocate failed: No space left on device",
            "Error while creating shared memory segment /dev/shm/nccl…",
            "Error while attaching to shared memory segment /dev/shm/nccl…",
            "Error: failed to extend /dev/shm/nccl-",
            "Call to ftruncate failed… /dev/shm/nccl",
            "dev/shm/nccl-… No space left on device",
        ),
        "the container's shared memory is too small for NCCL",
        MORE_SHM,
        "NVIDIA/nccl issues 290 and 342",
        entry="I02",
        also=("CON009", "PRJ020"),
    ),
    Signature(
        "MEM001",
        (
            "Call to ibv_reg_mr failed",
            "ibv_reg_mr… Cannot allocate memory",
            "Call to ibv_reg_mr_iova2 failed with error Cannot allocate memory",
            "ibv_reg_mr failed: Cannot allocate memory",
            "libibverbs: Warning: RLIMIT_MEMLOCK is {bytes:number} bytes",
        ),
        "the limit of locked memory is too small for InfiniBand",
        Fix(
            "Lift the limit for the container.",
            ("docker run --ulimit memlock=-1 --ulimit stack=67108864 --cap-add=IPC_LOCK …",),
            where=Side.PROJECT,
            docs=_NCCL_GUIDE,
        ),
        "NVIDIA, NCCL User Guide, Troubleshooting",
        entry="I03",
    ),
    Signature(
        "NET001",
        (
            "Watchdog caught collective operation timeout",
            "NCCL operation timed out",
            "Some NCCL operations have failed or timed out",
            "Watchdog caught collective operation timeout: WorkNCCL",
        ),
        "a collective operation of several GPUs never ended: one rank is stuck or gone, or traffic between the GPUs"
        " is (ACS, IOMMU,"
        " GeForce without P2P)",
        Fix(
            "Look for a rank that failed first. If none did, try without direct traffic between GPUs; if that helps,"
            " turn ACS off in the"
            " firmware or boot with iommu=pt.",
            ("NCCL_DEBUG=INFO NCCL_P2P_DISABLE=1 torchrun …",),
            docs=_NCCL_GUIDE,
        ),
        "NVIDIA/nccl issues 631 and 2079; NVIDIA/nccl-tests issue 117",
        confidence=Confidence.POSSIBLE,
        entry="I04",
    ),
    Signature(
        "NET003",
        (
            "Connect to {place:name} failed : Connection refused",
            "Connect to {place:name} failed : No route to host",
            "NCCL WARN Net : Connect to",
            "NCCL WARN…socketStartConnect: Connect to",
            "socketStartConnect: Connect to {place:name}<{port:number}> failed",
            "NCCL WARN Net : Connect to {place:name}<{port:number}> failed",
            "NCCL WARN…socketProgress: Connection closed by remote peer",
            "socketPollConnect: Connect to {place:name}<{port:number}> returned",
            "NCCL WARN Net : Connect to {place:name}",
            "RuntimeError: Socket Timeout",
            "NCCL INFO Call to connect returned Connection refused, retrying",
            "Call to connect returned Connection refused",
            "Call to connect returned No route to host",
            "[Gloo] connectFullMesh failed",
            "Gloo connectFullMesh failed with",
            "makeDeviceForHostname",
            "The client socket has timed out after {seconds:number}s while trying to connect to",
            "The client socket has failed to connect to",
            "The server socket has failed to listen on any local network address",
        ),
        "the processes do not reach each other over the network: the wrong interface, a container's own network, or a"
        " firewall",
        Fix(
            "Use the host's network and name the interface; open the ports between the machines.",
            ("docker run --network=host …", "export NCCL_SOCKET_IFNAME=eth0 GLOO_SOCKET_IFNAME=eth0"),
            where=Side.PROJECT,
            docs=_NCCL_GUIDE,
        ),
        "NVIDIA/nccl issue 331; pytorch/pytorch issue 23363",
        confidence=Confidence.LIKELY,
        entry="I05",
    ),
    Signature(
        "NET003",
        (
            "ncclSystemError: System call (e.g. socket, malloc) or external library call failed",
            "ncclSystemError: System call (socket, malloc, munmap, etc) failed",
            "NCCL error in…unhandled system error",
            "NCCL error in…unhandled cuda error",
            "ncclUnhandledCudaError: Call to CUDA function failed",
            "ncclInternalError: Internal check failed",
            "ncclRemoteError: A call failed possibly due to a network error",
            "unhandled system error",
        ),
        "NCCL failed and keeps its reason for its own log",
        Fix(
            "Run again with NCCL's log and look for the first line with WARN.",
            ("NCCL_DEBUG=INFO torchrun …",),
            where=Side.CONTAINER,
            docs=_NCCL_GUIDE,
        ),
        "NVIDIA, NCCL User Guide, Troubleshooting",
        confidence=Confidence.POSSIBLE,
        beside=("nccl",),
        entry="I05",
    ),
    Signature(
        "MEM002",
        (
            "Out of memory: Killed process",
            "Exited (137)",
            "Out of memory: Killed process {pid:number} ({program:text})",
            "Memory cgroup out of memory: Killed process {pid:number} ({program:text})",
            "oom-kill:constraint=",
            "Memory cgroup out of memory",
            "exited with code 137",
            "exit code 137",
            "exit code: 137",
            "exit status 137",
            "exitcode : -9",
            "died with <Signals.SIGKILL: 9>",
            "(exitcode: -9)",
            "OOMKilled",
            "Signal 9 (SIGKILL) received by PID",
            "was killed by signal: Killed",
            "is killed by signal: Killed",
        ),
        "the process was killed, mostly because the memory of the machine, the container or the WSL guest was full",
        Fix(
            "Give the container or the WSL guest more memory, load the model in shards (safetensors,"
            " low_cpu_mem_usage), or use fewer"
            " workers.",
            ("free -h", "docker inspect CONTAINER --format '{{.State.OOMKilled}}'"),
        ),
        "Docker, Resource constraints; PyTorch, torchrun",
        confidence=Confidence.LIKELY,
        entry="I08",
        also=("MEM003", "CON011", "WSL006"),
    ),
    Signature(
        "NET002",
        ("Bootstrap : no socket interface found", "Bootstrap: no socket interface found"),
        "NCCL found no network interface: NCCL_SOCKET_IFNAME names one that is not here",
        Fix("Name one that is here, or none.", ("ip -brief address", "unset NCCL_SOCKET_IFNAME"), where=Side.CONTAINER),
        "NVIDIA/nccl, src/bootstrap.cc",
        entry="I05",
    ),
)
