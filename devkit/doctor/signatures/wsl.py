"""Errors of WSL 2 and of Docker Desktop on Windows."""

from devkit.doctor.model import Confidence, Fix, Restart, Severity, Side
from devkit.doctor.signatures.fixes import UPDATE_WSL
from devkit.doctor.signatures.model import Signature

WSL: tuple[Signature, ...] = (
    Signature(
        "WSL001",
        (
            "GPU access blocked by the operating system",
            "NVML_ERROR_OPERATING_SYSTEM",
            "NVMLError_OperatingSystem",
        ),
        "Linux cannot reach the GPU that Windows owns: mostly a Linux driver was installed inside of WSL and hides"
        " Windows' libraries",
        Fix(
            "Remove the Linux driver from the guest, update WSL and the Windows driver, and restart WSL.",
            ("sudo apt-get purge 'nvidia-*' 'libnvidia-*'", "wsl.exe --update", "wsl.exe --shutdown"),
            where=Side.WSL,
            root=True,
            restart=Restart.WSL,
            docs="https://docs.nvidia.com/cuda/wsl-user-guide/",
        ),
        "microsoft/WSL issues 9938 and 9962",
        confidence=Confidence.LIKELY,
        entry="D01",
        also=("WSL004", "WSL005"),
    ),
    Signature(
        "WSL003",
        (
            "stat failed: /usr/lib/wsl/lib/{library:name}: no such file or directory",
            "/usr/lib/wsl/lib/{library:name}: cannot open shared object file",
            "/usr/lib/wsl/lib/{library:name}: no such file",
        ),
        "Windows does not provide {library} to Linux: its NVIDIA driver is too old, or WSL was not restarted after"
        " its update",
        UPDATE_WSL,
        "NVIDIA/nvidia-docker issue 1225",
        entry="D03",
    ),
    Signature(
        "WSL003",
        (
            "nvidia-container-cli: initialization error: WSL environment detected but no adapters were found",
            "WSL environment detected but no adapters were found",
            "libdxcore.so: cannot open shared object file",
        ),
        "WSL shows no GPU: the Windows driver, Windows itself or WSL is too old, or the WSL kernel lacks the GPU"
        " device",
        UPDATE_WSL,
        "NVIDIA/libnvidia-container, src/dxcore.c",
        entry="D03",
    ),
    Signature(
        "WSL007",
        ("libcuda.so.1 is not a symbolic link",),
        "a harmless line of ldconfig in WSL: Windows delivers copies where Linux has links",
        Fix(
            "Nothing to do. Where a linker asks for -lcuda, name the folder.",
            ("export LIBRARY_PATH=/usr/lib/wsl/lib",),
            where=Side.WSL,
        ),
        "microsoft/WSL issue 5548",
        severity=Severity.NOTE,
        entry="D04",
    ),
    Signature(
        "WSL008",
        (
            "file creation failed…libnvidia-ml.so.1: file exists",
            "file creation failed…libcuda.so.1: file exists",
            "mount error: file creation failed…: file exists",
            "mount error: failed to create symlink…file exists",
        ),
        "the image itself contains files of a driver where the toolkit wants to put the machine's own",
        Fix(
            "Build the image anew without the driver's libraries; do not build with nvidia as the default runtime.",
            ("RUN rm -f /usr/lib/x86_64-linux-gnu/libcuda.so* /usr/lib/x86_64-linux-gnu/libnvidia-*.so*",),
            where=Side.IMAGE,
        ),
        "NVIDIA/nvidia-docker issues 1551 and 1699",
        entry="D05",
    ),
    Signature(
        "ENG001",
        (
            "The command 'docker' could not be found in this WSL {version:number} distro",
            "We recommend to activate the WSL integration in Docker Desktop settings",
            "could not be found in this WSL… activate the WSL integration in Docker Desktop",
        ),
        "Docker Desktop runs, and its integration with this WSL distribution is off",
        Fix(
            "Turn it on: Docker Desktop, Settings, Resources, WSL integration; then open a new shell.",
            where=Side.WINDOWS,
            docs="https://docs.docker.com/desktop/features/wsl/",
        ),
        "microsoft/WSL issue 10253; Docker, WSL 2 backend",
        entry="D06",
        also=("ENG009",),
    ),
    Signature(
        "WSL002",
        (
            "WSL 1 is not supported",
            "requires WSL 2",
            "WSL1 is not supported",
            "Please enable the Virtual Machine Platform… WSL 2",
            "WSL 2 requires an update to its kernel component",
        ),
        "the distribution runs in WSL 1 or WSL 2 is not ready; only WSL 2 shows the GPU",
        Fix(
            "Convert the distribution to WSL 2.",
            ("wsl.exe --update", "wsl.exe --list --verbose", "wsl.exe --set-version Ubuntu 2"),
            where=Side.WINDOWS,
            restart=Restart.WSL,
        ),
        "Microsoft, WSL documentation, Comparing WSL versions",
        confidence=Confidence.LIKELY,
        entry="D02",
    ),
    Signature(
        "WSL002",
        (
            "stat failed: /dev/dxg: no such file or directory",
            "/dev/dxg: No such file or directory",
            "cannot access '/dev/dxg': No such file or directory",
            "open failed: /dev/dxg: no such file or directory",
            "gathering device information… /dev/dxg",
        ),
        "/dev/dxg is missing: the distribution runs in WSL 1, or its kernel lacks the GPU device",
        UPDATE_WSL,
        "NVIDIA, CUDA on WSL User Guide",
        entry="D02",
    ),
    Signature(
        "WSL009",
        ("nvidia-cdi-refresh.service: skipped because of an unmet condition check",),
        "the service that renews CDI specifications does not run here; in WSL it does so only since toolkit 1.19.1",
        Fix(
            "Update the toolkit, or write the specification by hand.",
            ("sudo nvidia-ctk cdi generate --output=/var/run/cdi/nvidia.yaml",),
            where=Side.WSL,
            root=True,
        ),
        "NVIDIA, Container Toolkit, Release notes",
        severity=Severity.WARNING,
        entry="D10",
        also=("CDI006",),
    ),
    Signature(
        "WSL002",
        ("The command 'docker' could not be found in this WSL 1 distro",),
        "the distribution runs in WSL 1, which Docker Desktop does not serve and which shows no GPU",
        Fix("Convert it to WSL 2.", ("wsl.exe --list --verbose", "wsl.exe --set-version Ubuntu 2"), where=Side.WINDOWS),
        "Docker, WSL 2 backend",
        entry="D02",
    ),
)
