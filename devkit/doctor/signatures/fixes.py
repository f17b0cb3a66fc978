"""What to do when the machine is not known: the general form of the fixes that the checks give for one machine.

Where the commands differ from distribution to distribution the fix says so in words; `devkit doctor` on the machine
knows them.
"""

from devkit.doctor.fixes import CDI_GUIDE, DRIVER_GUIDE, TOOLKIT_GUIDE, TOOLKIT_TROUBLESHOOTING, WSL_GUIDE
from devkit.doctor.model import Fix, Restart, Side

ASK_DOCTOR = Fix(
    "Run the doctor on the machine where it happened: it reads what this text does not say.", ("devkit doctor",)
)

REBOOT = Fix(
    "Reboot. Without a reboot: stop everything that uses the GPU, unload the old module and load the new one.",
    ("sudo rmmod nvidia_uvm nvidia_drm nvidia_modeset nvidia && sudo modprobe nvidia",),
    root=True,
    restart=Restart.HOST,
    docs=DRIVER_GUIDE,
)
LOAD_DRIVER = Fix(
    "Load the module and read what it says; after a kernel update install that kernel's headers and rebuild the"
    " module.",
    ("sudo modprobe nvidia", "sudo dkms autoinstall"),
    root=True,
    docs=DRIVER_GUIDE,
)
INSTALL_DRIVER = Fix(
    "Install the driver on the host with the distribution's package manager and reboot. In WSL install it on Windows"
    " only.",
    ("sudo ubuntu-drivers install  # Ubuntu",),
    root=True,
    restart=Restart.HOST,
    docs=DRIVER_GUIDE,
)
UPDATE_DRIVER = Fix(
    "Install a newer driver on the host and reboot; in WSL on Windows, followed by `wsl.exe --shutdown`.",
    root=True,
    restart=Restart.HOST,
    docs=DRIVER_GUIDE,
)
OPEN_MODULE = Fix(
    "Install the open flavour of the same driver branch and reboot.",
    ("sudo apt-get install -y nvidia-driver-580-open  # Ubuntu",),
    root=True,
    restart=Restart.HOST,
    docs=DRIVER_GUIDE,
)
POWER_CYCLE = Fix(
    "Switch the machine off and on again. If it comes back: reseat the card and its power cables, check the supply,"
    " and cap the power.",
    ("sudo nvidia-smi -pl 300",),
    root=True,
    restart=Restart.HOST,
    docs="https://docs.nvidia.com/deploy/xid-errors/",
)
RESET_GPU = Fix(
    "Stop everything that uses the GPU and reset it, or reboot. If it comes back, have the card replaced.",
    ("sudo nvidia-smi --gpu-reset -i 0",),
    root=True,
    docs="https://docs.nvidia.com/deploy/xid-errors/",
)
INSTALL_TOOLKIT = Fix(
    "Install the NVIDIA Container Toolkit, connect it to the engine, and restart that. The engine looks for its hook"
    " only at start.",
    (
        "sudo apt-get install -y nvidia-container-toolkit  # from NVIDIA's repository; dnf, zypper and pacman have"
        " it, too",
        "sudo nvidia-ctk runtime configure --runtime=docker",
        "sudo systemctl restart docker",
    ),
    root=True,
    restart=Restart.ENGINE,
    docs=TOOLKIT_GUIDE,
)
UPDATE_TOOLKIT = Fix(
    "Update the NVIDIA Container Toolkit and restart the engine.",
    ("sudo apt-get install --only-upgrade nvidia-container-toolkit  # Debian, Ubuntu", "sudo systemctl restart docker"),
    root=True,
    restart=Restart.ENGINE,
    docs=TOOLKIT_GUIDE,
)
REGISTER_RUNTIME = Fix(
    "Register the runtime with the engine and restart it; for rootless Docker in the user's own daemon.json.",
    ("sudo nvidia-ctk runtime configure --runtime=docker", "sudo systemctl restart docker"),
    root=True,
    restart=Restart.ENGINE,
    docs=TOOLKIT_GUIDE,
)
WRITE_CDI = Fix(
    "Write the CDI specification anew, readable by every user.",
    ("sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml", "nvidia-ctk cdi list"),
    root=True,
    docs=CDI_GUIDE,
)
RECREATE = Fix(
    "Recreate the container. For good: give it the GPU by CDI, which survives a reload of systemd.",
    ("docker run --device nvidia.com/gpu=all …",),
    docs=TOOLKIT_TROUBLESHOOTING,
)
GIVE_GPU = Fix(
    "Request the GPU when the container is created: `--gpus all`, or `gpus: all` in the Compose service.",
    ("docker run --rm --gpus all ubuntu nvidia-smi",),
    where=Side.PROJECT,
    docs=TOOLKIT_GUIDE,
)
UPDATE_WSL = Fix(
    "Update the NVIDIA driver on Windows and WSL itself, then restart WSL. Install no Linux driver inside of WSL.",
    ("wsl.exe --update", "wsl.exe --shutdown"),
    where=Side.WINDOWS,
    restart=Restart.WSL,
    docs=WSL_GUIDE,
)
CUDA_TORCH = Fix(
    "Replace torch by a build for CUDA, and make torch a direct requirement so that no other package brings the CPU"
    " build back.",
    ("pip install --force-reinstall torch --index-url https://download.pytorch.org/whl/cu128",),
    where=Side.CONTAINER,
    docs="https://pytorch.org/get-started/locally/",
)
NEWER_TORCH = Fix(
    "Install a torch whose wheels have kernels for this GPU: 2.7 or newer with CUDA 12.8 or newer for RTX 50 and B200.",
    ("pip install --upgrade torch --index-url https://download.pytorch.org/whl/cu128",),
    where=Side.CONTAINER,
    docs="https://pytorch.org/get-started/locally/",
)
START_ENGINE = Fix(
    "Start Docker and have it started at boot. In WSL without systemd: `sudo service docker start`.",
    ("sudo systemctl enable --now docker",),
    root=True,
)
JOIN_GROUP = Fix(
    "Join the group docker and log in again; an editor's server on this machine must be restarted, too.",
    ("sudo usermod -aG docker $USER", "newgrp docker"),
    root=True,
    restart=Restart.LOGIN,
)
MORE_SHM = Fix(
    "Give the container more shared memory: `--shm-size=8g`, or `shm_size: 8gb` in the Compose service.",
    ("docker run --shm-size=8g …",),
    where=Side.PROJECT,
)
OWN_CACHE = Fix(
    "Let the user of the container own the cache; create the folder on the host before it is mounted.",
    ("sudo chown -R $(id -u):$(id -g) ~/.cache/huggingface",),
    root=True,
)
MAKE_ROOM = Fix(
    "Make room: remove unused images and build cache, or move the engine's data to a larger disk.",
    ("docker system df", "docker system prune"),
)
UNSET_LIBRARY_PATH = Fix(
    "Take the CUDA folders out of LD_LIBRARY_PATH: torch brings its own CUDA libraries.",
    ("unset LD_LIBRARY_PATH",),
    where=Side.CONTAINER,
)
