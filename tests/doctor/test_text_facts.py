"""Facts that a log states: how they are read, and that they choose and fill every command."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devkit.doctor.known_errors import find_known_errors
from devkit.doctor.model import Side
from devkit.doctor.signatures.catalog import load_families
from devkit.doctor.signatures.log_text import read_words
from devkit.doctor.signatures.rendering import render_fix_of
from devkit.doctor.signatures.text_facts import READINGS, TextFact, TextFacts, read_text_facts
from devkit.facts.machine import Platform
from tests.cases import cases

ROWS = tuple(cause for family in load_families() for cause in family.causes)
IMAGE_WORK = re.compile(r"docker (?:build|buildx|builder|manifest|push)|DOCKER_BUILDKIT")


def facts_of(text):
    return read_text_facts(read_words(text))


@cases(
    "text, name, value",
    {
        "snap": ("$ snap install docker\n$ docker run x", "engine", "snap"),
        "Desktop": ("Server: Docker Desktop 4.38", "engine", "desktop"),
        "rootless": ("docker run x\nunix:///run/user/1000/docker.sock", "engine", "rootless"),
        "Podman": ("$ podman run --device nvidia.com/gpu=all x", "engine", "podman"),
        "pod": ("it fails in my pod / kubectl logs x", "engine", "kubernetes"),
        "Apptainer": ("FATAL: singularity exec --nv", "engine", "apptainer"),
        "the one that fails": (
            "docker: Error response from daemon: x\nThe same works with podman.",
            "engine",
            "docker",
        ),
        "uname": ("Linux box 5.15.0-91-generic #101 x86_64", "kernel", "5.15.0-91-generic"),
        "docker info": (" Cgroup Version: 2", "cgroup_version", "2"),
        "tag of a wheel": ("numpy-2.1.0-cp312-cp312-manylinux.whl", "python", "3.12"),
        "build of torch": ("torch==2.7.1+cu126", "torch_build", "cu126"),
        "folder of CUDA": ("-I/usr/local/cuda-11.8/include", "cuda_toolkit", "11.8"),
        "variable": ("NCCL_GRAPH_FILE set by environment to /x.xml", "variable:NCCL_GRAPH_FILE", "/x.xml"),
        "exit code": ("command terminated with exit code 137", "exit_code", "137"),
        "the user's command": ("user@host:~$ docker run --gpus all x", "command", "docker run --gpus all x"),
        "package of a distribution": ("kernel-devel-4.18.0-240.el8.x86_64", "distribution", "rhel"),
    },
)
def test_a_fact_is_read(text, name, value):
    assert facts_of(text).find(name) == value


@pytest.mark.parametrize(
    "text",
    [
        "transformers==5.0.0",
        "transformers: 5.0.0",
        "transformers 5.0.0",
        "transformers-5.0.0",
        "transformers | 5.0.0 |",
    ],
)
def test_a_version_is_read_in_every_printed_form(text):
    assert facts_of(f"- {text}\n").find_version("transformers") == "5.0.0"


@pytest.mark.parametrize("text", ["x 1.0 requires transformers==4.0", "transformers>=4.0", "my-transformers==4.0"])
def test_what_is_required_is_not_installed(text):
    assert facts_of(text).find_version("transformers") == ""


def test_facts_have_their_lines_and_contradictions_are_no_facts():
    facts = facts_of("a\nDriver Version: 535.1.2\nb\nDriver Version: 550.3.4")
    assert [(each.value, each.line) for each in facts.stated if each.name == "driver"] == [
        ("535.1.2", 2),
        ("550.3.4", 4),
    ]
    assert facts.find("driver") == ""


def test_a_text_is_a_machine_to_the_catalog():
    facts = facts_of("NAME=Ubuntu\n5.15.167.4-microsoft-standard-WSL2 ").facts
    assert (facts.system.platform, facts.system.distribution.id) == (Platform.WSL2, "ubuntu")


@pytest.mark.parametrize(
    ("engine", "foreign"),
    [
        ("kubernetes", r"\bdocker (?!\.io)|nvidia-ctk runtime configure --runtime=docker|restart docker|daemon\.json"),
        ("podman", r"\bdocker (?:run|exec|ps|logs|inspect|compose)|--runtime=docker|restart docker"),
        ("apptainer", r"\bdocker (?:run|exec|ps|logs)|--runtime=docker|restart docker"),
        ("rootless", r"sudo nvidia-ctk runtime configure --runtime=docker$|sudo systemctl restart docker"),
        ("desktop", r"nvidia-ctk runtime configure --runtime=docker|systemctl restart docker"),
        ("containerd", r"\bdocker run|--runtime=docker|restart docker"),
    ],
)
def test_no_command_is_one_of_another_engine(engine, foreign):
    facts = TextFacts((TextFact("engine", engine),))
    commands = {command for row in ROWS for command in render_fix_of(row, {}, facts).commands}
    assert len(commands) > 1500
    assert [each for each in commands if re.search(foreign, each) and not IMAGE_WORK.search(each)] == []


def test_a_snap_gets_no_command_that_it_does_not_read():
    facts = TextFacts((TextFact("engine", "snap"),))
    for row in ROWS:
        fix = render_fix_of(row, {}, facts)
        if any("nvidia-ctk runtime configure --runtime=docker" in each for each in fix.commands):
            assert fix.commands[0].startswith("sudo snap remove"), fix


STATED = TextFacts(
    (
        TextFact("driver", "535.216.01"),
        TextFact("reported_cuda", "12.2"),
        TextFact("torch_build", "cu121"),
        TextFact("cuda_toolkit", "12.1"),
    ),
    lowered="torch==2.4.1+cu121",
)
VERSIONED = {
    r"(?:nvidia-(?:fabricmanager|utils|dkms|driver)|libnvidia-compute)-(\d{3})\b": {"535"},
    r"/usr/local/cuda-(\d+\.\d)": {"12.1"},
    r"whl/cu(\d{3})\b": {"118", "121", "126"},
    r"cuda-toolkit-(\d+-\d)": {"12-1"},
}


def test_no_command_has_a_fixed_version_where_the_text_states_one():
    wrong = []
    for row in ROWS:
        for command in render_fix_of(row, {}, STATED).commands:
            for pattern, right in VERSIONED.items():
                wrong += [command for found in re.findall(pattern, command) if found not in right]
    assert set(wrong) <= {
        # These name what the fix is about: the last branch for a GPU, the oldest wheel that has its kernels.
        "pip install --force-reinstall torch torchvision torchaudio --index-url https://download.pytorch.org/whl/cu130",
        "sudo apt-get install -y nvidia-driver-580-open  # Ubuntu",
        "sudo apt-get install -y nvidia-driver-580  # Ubuntu, for Maxwell, Pascal and Volta",
    }


LINUX_DRIVER = re.compile(r"\b(?:modprobe|nvidia-modprobe|dkms|ubuntu-drivers)\b|apt-get install\b.* nvidia-driver")


def test_wsl_gets_no_command_for_a_linux_driver():
    facts = TextFacts((TextFact("wsl", "wsl2"),))
    fixes = (render_fix_of(row, {}, facts) for row in ROWS)
    assert {
        each for fix in fixes if fix.where is Side.HOST for each in fix.commands if LINUX_DRIVER.search(each)
    } == set()


@pytest.mark.parametrize(("distribution", "command"), [("rhel", "dnf"), ("arch", "pacman"), ("opensuse", "zypper")])
def test_packages_are_installed_by_the_manager_of_the_distribution(distribution, command):
    facts = TextFacts((TextFact("distribution", distribution),))
    commands = {each for row in ROWS for each in render_fix_of(row, {}, facts).commands}
    assert [each for each in commands if re.match(r"(?:sudo )?apt", each)] == []
    assert any(each.startswith(f"sudo {command} ") for each in commands)


def test_a_gpu_newer_than_the_cuda_of_torch_is_the_cause_of_its_errors():
    error = "RuntimeError: NCCL error in: x.cpp:47, unhandled cuda error, NCCL version 21.0.3"
    match = find_known_errors(f"{error}\nmy torch version is 1.11.0,cuda 10.2 gpu rtx 3090")[0]
    assert "needs CUDA 11.1" in match.cause
    assert "torch==" in match.fix.commands[0]
    assert "needs CUDA" not in find_known_errors(f"{error}\nmy torch version is 2.8.0,cuda 12.8 gpu rtx 3090")[0].cause


def commands_of(text):
    return "\n".join(find_known_errors(text)[0].fix.commands)


@cases(
    "text, holds, lacks",
    {
        "the driver's branch": (
            "fabric manager NVIDIA GPU driver interface version 535.183.01 don't match with driver version 535.216.01",
            "nvidia-fabricmanager-535",
            "580",
        ),
        "the torch that the package was built for": (
            "xformers 0.0.30 requires torch==2.7.0, but you have torch 2.8.0+cu128 which is incompatible.",
            "torch==2.7.0",
            "2.8",
        ),
        "the newest toolkit that knows it": ("Unsupported gpu architecture 'compute_35'", "cuda-11.8", "6.0"),
        "a snap": (
            '$ snap install docker\ncould not select device driver "" with capabilities: [[gpu]].',
            "snap remove docker",
            "nvidia-ctk cdi",
        ),
        "shared memory of a pod": (
            "on the kubernetes pod\nRuntimeError: DataLoader worker (pid 1) is killed by signal: Bus error. It is possible"
            " that dataloader's workers are out of shared memory.",
            "emptyDir: {medium: Memory",
            "docker",
        ),
        "one MIG device": (
            "CUDA_VISIBLE_DEVICES=MIG-8a1b6a6e-1111-5e6c-9cbb-0123456789ab,MIG-7a1b6a6e-1111-5e6c-9cbb-0123456789ab\n"
            "RuntimeError: CUDA error: invalid device ordinal",
            "CUDA_VISIBLE_DEVICES=MIG-8a1b6a6e",
            "unset",
        ),
        "a name that came with a later torch": (
            'torch 2.4.1\n  File "/x/site-packages/transformers/integrations/tensor_parallel.py", line 3, in <module>\n'
            "NameError: name 'Replicate' is not defined",
            "torch>=2.5",
            "transformers",
        ),
        "a package older than its library": (
            'transformers: 5.0.0rc1\n  File "/x/site-packages/unsloth/models/_utils.py", line 10, in <module>\n'
            "NameError: name 'PreTrainedConfig' is not defined",
            "--upgrade unsloth",
            "transformers>=5",
        ),
        "shared GPUs": (
            "gpu pod 1: Warning FailedScheduling 0/3 nodes are available: 3 Insufficient nvidia.com/gpu.\n nvidia.com/gpu.shared: 4",
            "nvidia.com/gpu.shared: 1",
            "device-plugin-daemonset",
        ),
    },
)
def test_values_of_the_text_reach_the_commands(text, holds, lacks):
    commands = commands_of(text)
    assert holds in commands
    assert lacks not in commands


BUSY = "CUDA error: all CUDA-capable devices are busy or unavailable"
MISMATCH = "# nvidia-smi\nFailed to initialize NVML: Driver/library version mismatch"
NO_LIBRARY = (
    "nvidia-container-cli: initialization error: load library failed: libnvidia-ml.so.1: cannot open shared object"
)
TWO_GPUS = "RuntimeError: Expected all tensors to be on the same device, but found at least two devices, cuda:1 and "
FEW_IDS = "Error: there might not be enough IDs available in the namespace (requested 0:15 for /etc/shadow)"
FULL = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23.64 GiB of which 1.12 GiB is free. "
HELD = "Including non-PyTorch memory, this process has {} memory in use."
FEW_GPUS = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."


@cases(
    "error, fact, without, stated",
    {
        "MIG without devices": (BUSY, "| No MIG devices found |", "exclusive use", "MIG mode"),
        "rebooted": (MISMATCH, "# reboot\n", "old kernel module", "a reboot does not fix"),
        "WSL 1": (NO_LIBRARY, "* Ubuntu   Stopped   1\n", "cannot find a driver", "Ubuntu runs in WSL 1"),
        "full by itself": (FULL, HELD.format("22.50 GiB"), "or another process", "does not fit"),
        "range": (FEW_IDS, "ra:100000:65536\nra:1000:1\n", "user ID outside", "of 65536 IDs, but"),
        "wanted": (FEW_GPUS, "Requests:\n  nvidia.com/gpu:  2\n", "advertises none", "requests 2 GPUs"),
    },
)
def test_a_fact_of_the_text_chooses_the_cause(error, fact, without, stated):
    assert without in find_known_errors(error, is_ours=True)[0].cause
    assert stated in find_known_errors(f"{fact}\n{error}", is_ours=True)[0].cause


@pytest.mark.parametrize(
    ("held", "names"), [("22.50 GiB", False), ("17.0 GiB", False), ("16.5 GiB", True), ("0.50 MiB", True)]
)
def test_the_share_of_a_process_decides_whether_another_one_is_named(held, names):
    assert ("another process" in find_known_errors(FULL + HELD.format(held))[0].cause) is names


@pytest.mark.parametrize(
    ("devices", "cause"), [("cuda:0!", "code combines tensors on cuda:1 and cuda:0"), ("cpu!", "model and its inputs")]
)
def test_the_devices_that_are_named_choose_the_cause(devices, cause):
    assert cause in find_known_errors(TWO_GPUS + devices)[0].cause


def test_what_a_program_says_of_a_reboot_is_no_reboot_of_the_user():
    assert facts_of("The system must be rebooted. Please run: sudo reboot").find("rebooted") == ""


@pytest.mark.parametrize("name", [name for name, each in READINGS.items() if each.words])
@given(data=st.data())
def test_whatever_a_pattern_finds_has_one_of_the_words_that_it_is_searched_for_by(name, data):
    text = data.draw(st.from_regex(READINGS[name].compiled))
    if text.isascii():
        assert any(word in text.lower() for word in READINGS[name].words)


NAMED = {
    "model": "vllm serve Qwen/Qwen3-8B --port 8000",
    "image": "docker pull nvcr.io/nvidia/pytorch:25.01-py3",
    "pod": "kubectl logs trainer-0",
    "container": "docker logs trainer",
    "job": "Submitted batch job 4711",
    "node": "Node:  gpu-07/10.0.0.7",
}


def test_a_thing_that_the_text_names_is_asked_for_in_no_command():
    facts = facts_of("\n".join(NAMED.values()))
    rendered = [render_fix_of(row, {}, facts).commands for row in ROWS]
    asked = {name for row in ROWS for command in row.fix.commands for name in re.findall(r"<([a-z ]+)>", command)}
    assert NAMED.keys() <= asked
    left = [each for commands in rendered for each in commands if set(re.findall(r"<([a-z]+)>", each)) & NAMED.keys()]
    assert left == []
    assert any("Qwen/Qwen3-8B" in each for commands in rendered for each in commands)
