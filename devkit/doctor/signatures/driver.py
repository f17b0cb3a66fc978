"""Errors of the driver and the kernel module, as nvidia-smi, modprobe, DKMS, apt and the kernel print them."""

from devkit.doctor.model import Confidence, Fix, Restart
from devkit.doctor.signatures.fixes import INSTALL_DRIVER, LOAD_DRIVER, OPEN_MODULE, REBOOT
from devkit.doctor.signatures.model import Signature

DRIVER: tuple[Signature, ...] = (
    Signature(
        "DRV002",
        (
            "NVML: Driver/library version mismatch",
            "nvml error: driver/library version mismatch",
            "NVML_ERROR_LIB_RM_VERSION_MISMATCH",
            "NVMLError_LibRmVersionMismatch",
            "RM has detected an NVML/RM version mismatch",
        ),
        "the driver's packages were updated while the old kernel module stays loaded",
        REBOOT,
        "NVIDIA/nvidia-container-toolkit issue 394",
        entry="A01",
        also=("DRV012",),
    ),
    Signature(
        "DRV002",
        (
            "API mismatch: the client has the version {client:version}… this kernel module has the version"
            " {module:version}",
        ),
        "the libraries are {client}, the loaded kernel module is {module}",
        REBOOT,
        "NVIDIA/open-gpu-kernel-modules, nvidia/nv.c",
        entry="A01",
        also=("DRV012",),
    ),
    Signature(
        "DRV001",
        (
            "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver",
            "nvml error: driver not loaded",
            "NVML: Driver Not Loaded",
            "NVML_ERROR_DRIVER_NOT_LOADED",
            "NVMLError_DriverNotLoaded",
            "NVMLError: Driver Not Loaded",
        ),
        "no NVIDIA kernel module is loaded, so no program reaches the GPU",
        LOAD_DRIVER,
        "NVIDIA/nvidia-docker issue 1393",
        entry="A02",
    ),
    Signature(
        "DRV001",
        (
            "Bad return status for module build on kernel: {kernel:name}",
            "Error! Bad return status for module build on kernel",
            "Consult /var/lib/dkms/nvidia…make.log",
        ),
        "DKMS could not build the driver's module for this kernel: mostly a kernel newer than the driver supports, or"
        " another"
        " compiler than the kernel's",
        Fix(
            "Read the reason in make.log; boot the previous kernel, or install a newer driver branch.",
            ("tail -n 40 /var/lib/dkms/nvidia/*/build/make.log", "sudo dkms autoinstall"),
            root=True,
            restart=Restart.HOST,
        ),
        "pop-os/pop issue 3811",
        beside=("nvidia", "NV_VERBOSE"),
        entry="A03",
    ),
    Signature(
        "DRV001",
        (
            "kernel-headers package not installed",
            "Unable to find the kernel source tree for the currently running kernel",
            "Your kernel headers for kernel {kernel:name} cannot be found",
            "kernel headers for target kernel {kernel:name} cannot be found",
            "kernel headers… cannot be found at /lib/modules/",
        ),
        "the running kernel's headers are missing, so the driver's module cannot be built",
        Fix(
            "Install the headers of the running kernel and build the module.",
            (
                "sudo apt-get install -y linux-headers-$(uname -r)  # Debian, Ubuntu; Fedora: kernel-devel-$(uname -r)",
                "sudo dkms autoinstall",
            ),
            root=True,
            restart=Restart.HOST,
        ),
        "dell/dkms, dkms.in; NVIDIA's driver installer",
        entry="A04",
    ),
    Signature(
        "DRV001",
        (
            "could not insert 'nvidia': Key was rejected by service",
            "could not insert 'nvidia': Required key not available",
            "could not insert 'nvidia_current': Required key not available",
            "could not insert 'nvidia…': Key was rejected by service",
            "could not insert 'nvidia…': Required key not available",
            "nvidia…Loading of module with unavailable key is rejected",
            "nvidia: module verification failed…Loading of module with unavailable key is rejected",
        ),
        "Secure Boot is on and the kernel does not trust the key that signed the driver's module",
        Fix(
            "Enroll the key that signs the module and confirm it in the blue menu at the next boot, or turn Secure"
            " Boot off.",
            (
                "mokutil --sb-state",
                "sudo mokutil --import /var/lib/shim-signed/mok/MOK.der  # Ubuntu; Fedora:"
                " /etc/pki/akmods/certs/public_key.der",
            ),
            root=True,
            restart=Restart.HOST,
        ),
        "NVIDIA/gpu-driver-container issue 44",
        entry="A05",
    ),
    Signature(
        "DRV001",
        (
            "Loading of module with unavailable key is rejected",
            "Loading of unsigned module is rejected",
            "Loading of module with unavailable key is restricted",
        ),
        "Secure Boot is on and the kernel refused a module whose key it does not trust",
        Fix(
            "If it is the NVIDIA module: enroll its key and confirm it at the next boot, or turn Secure Boot off.",
            ("mokutil --sb-state", "sudo mokutil --import /var/lib/shim-signed/mok/MOK.der  # Ubuntu"),
            root=True,
            restart=Restart.HOST,
        ),
        "secureblue/secureblue issue 1043",
        confidence=Confidence.LIKELY,
        beside=("nvidia",),
        entry="A05",
    ),
    Signature(
        "DRV001",
        (
            "The Nouveau kernel driver is currently in use by your system",
            "appears to already be using the GPU… nouveau",
            "nouveau…is already loaded…conflict with the NVIDIA",
            "but it is already bound to nouveau",
            "unload the nouveau",
            "was loaded and obtained ownership of the NVIDIA device",
        ),
        "the free nouveau driver holds the GPU, so NVIDIA's own cannot take it",
        Fix(
            "Keep nouveau from loading, write the initial RAM disk anew, and reboot.",
            (
                "printf 'blacklist nouveau\\noptions nouveau modeset=0\\n' | sudo tee"
                " /etc/modprobe.d/blacklist-nouveau.conf",
                "sudo update-initramfs -u  # Debian, Ubuntu; Fedora, RHEL: sudo dracut -f",
            ),
            root=True,
            restart=Restart.HOST,
        ),
        "Oneflow-Inc/oneflow issue 3106; NVIDIA's driver installer",
        entry="A06",
    ),
    Signature(
        "DRV001",
        (
            "modprobe: FATAL: Module nvidia not found in directory",
            "modprobe: FATAL: Module nvidia-current not found in directory",
            "Module nvidia not found in directory /lib/modules/{kernel:name}",
            "modprobe: ERROR: could not insert 'nvidia': No such device",
            "modprobe: ERROR: could not insert 'nvidia…': No such device",
            "modprobe: ERROR: could not insert 'nvidia': Exec format error",
            "modprobe: ERROR: could not insert 'nvidia…': Invalid argument",
            "modprobe: ERROR: could not insert 'nvidia…': Unknown symbol in module",
            "Unable to load the kernel module 'nvidia.ko'",
            "Unable to load the 'nvidia-drm' kernel module",
        ),
        "the NVIDIA kernel module is missing for the running kernel, or refused to load",
        LOAD_DRIVER,
        "NVIDIA/nvidia-docker issue 1393",
        entry="A02",
    ),
    Signature(
        "DRV001",
        (
            "bash: nvidia-smi: command not found… Command 'nvidia-smi' not found, but can be installed with",
            "Command 'nvidia-smi' not found, but can be installed with",
        ),
        "no NVIDIA driver is installed here",
        INSTALL_DRIVER,
        "Ubuntu's command-not-found",
        confidence=Confidence.LIKELY,
        entry="A08",
    ),
    Signature(
        "DRV004",
        (
            "requires use of the NVIDIA open kernel modules",
            "installed in this system requires use of the NVIDIA open kernel modules",
            "requires use of the NVIDIA open GPU kernel modules",
        ),
        "the closed kernel module is loaded, and this GPU needs the open one",
        OPEN_MODULE,
        "NVIDIA/open-gpu-kernel-modules issue 872",
        entry="A09",
    ),
    Signature(
        "DRV005",
        (
            "Could not load UVM kernel module. Is nvidia-modprobe installed",
            "nvidia-container-cli… /dev/nvidia-uvm: no such file or directory",
            "stat failed: /dev/nvidia-uvm: no such file or directory",
            "open failed: /dev/nvidia-uvm…no such file or directory",
            "/dev/nvidia-uvm: no such file or directory",
            "cannot stat '/dev/nvidia-uvm': No such file or directory",
            '/dev/nvidia-uvm": no such file or directory',
            'gathering device information… "/dev/nvidia-uvm": no such file',
        ),
        "the node /dev/nvidia-uvm is missing: nothing has loaded the unified memory module since boot",
        Fix(
            "Create the node now, and load the module at boot.",
            ("sudo nvidia-modprobe -u -c=0", "echo nvidia_uvm | sudo tee /etc/modules-load.d/nvidia-uvm.conf"),
            root=True,
        ),
        "NVIDIA/nvidia-docker issues 396 and 471; NVIDIA/enroot issue 106",
        entry="A13",
    ),
    Signature(
        "DRV008",
        (
            "The NVIDIA GPU {gpu:name}… is supported through the NVIDIA {branch:version} Legacy drivers",
            "supported through the NVIDIA {branch:version} Legacy drivers",
            "is supported through the NVIDIA {branch:version} Legacy",
        ),
        "the installed driver no longer knows this GPU: the last branch that does is {branch}",
        Fix(
            "Install the driver branch that the message names, and hold it there.",
            ("sudo apt-get install -y nvidia-driver-580  # Ubuntu, for Maxwell, Pascal and Volta",),
            root=True,
            restart=Restart.HOST,
        ),
        "NVIDIA/open-gpu-kernel-modules, nvidia/nv-pci.c",
        entry="A15",
    ),
    Signature(
        "DRV011",
        ("Conflicting values set for option Signed-By regarding source {source:name}",),
        "two lists of apt name NVIDIA's repository with different keys, so apt updates nothing",
        Fix(
            "Delete the older of the two lists.",
            ("grep -l nvidia /etc/apt/sources.list.d/*", "sudo rm /etc/apt/sources.list.d/nvidia-docker.list"),
            root=True,
            docs="https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/troubleshooting.html",
        ),
        "NVIDIA, Container Toolkit, Troubleshooting",
        beside=("nvidia",),
        entry="A18",
    ),
    Signature(
        "DRV008",
        (
            "NVIDIA driver will ignore this GPU",
            "not supported by open nvidia.ko because it does not include the required GPU System Processor (GSP)",
        ),
        "the installed driver, or its flavour of module, does not know this GPU",
        Fix(
            "Install the newest driver branch that still knows the card, in the closed flavour for cards before the"
            " RTX 20.",
            ("lspci -nn | grep -i nvidia",),
            root=True,
            restart=Restart.HOST,
        ),
        "NVIDIA/open-gpu-kernel-modules, nvidia/nv-pci.c",
        entry="A15",
    ),
    Signature(
        "DRV001",
        ("No NVIDIA GPU found", "None of the NVIDIA devices were initialized", "No NVIDIA graphics adapter probed"),
        "the driver's module found no GPU that it could take: another driver holds it, or this driver does not know it",
        LOAD_DRIVER,
        "NVIDIA/open-gpu-kernel-modules, nvidia/nv.c",
        confidence=Confidence.LIKELY,
        entry="A02",
        also=("DRV008", "GPU005"),
    ),
    Signature(
        "DRV006",
        (
            "/dev/nvidia{node:word}: Permission denied",
            "open failed: /dev/nvidia{node:word}: permission denied",
        ),
        "this user may not open the GPU's device nodes",
        Fix(
            "Look at the nodes' mode and group; join the group, or set NVreg_DeviceFileMode back to 0666.",
            ("ls -l /dev/nvidia*",),
            root=True,
        ),
        "NVIDIA, Container Toolkit, Troubleshooting",
        entry="J10",
        also=("CTK005", "CON012"),
    ),
)
