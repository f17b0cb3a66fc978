"""Texts without a known error: what they say themselves, logs that show no failure, and lines that only look like one."""

import pytest

from devkit.doctor.known_errors import explain_text
from devkit.doctor.model import Confidence
from tests.cases import cases

TRACEBACK = """
deepspeed 0.16.0
hint: use ZeRO stage 1 with gradient accumulation
Traceback (most recent call last):
  File "/x/site-packages/accelerate/accelerator.py", line 100, in no_sync
  File "/x/site-packages/deepspeed/runtime/engine.py", line 1991, in no_sync
    assert not self.zero_optimization_partition_gradients()
AssertionError: no_sync context manager is incompatible with gradient partitioning.
"""


def test_an_unknown_error_is_told_with_what_the_text_says():
    unknown = explain_text(TRACEBACK).unknown
    assert unknown.first_error.line == 8
    assert unknown.first_error.text.startswith("AssertionError: no_sync context manager")
    assert (unknown.package, unknown.caller, unknown.file) == (
        "deepspeed",
        "accelerate",
        "deepspeed/runtime/engine.py:1991",
    )
    assert "deepspeed 0.16.0" in unknown.versions
    assert unknown.advice == ("hint: use ZeRO stage 1 with gradient accumulation",)
    assert unknown.search.startswith("deepspeed 0.16.0 AssertionError no_sync context manager is incompatible")


def test_the_first_error_is_shown_where_a_known_line_only_reports_it():
    log = (
        "-- The CUDA compiler identification is NVIDIA 13.0.48\n"
        "CMake Error at CMakeLists.txt:12 (message): Compute capability 121 used, use 121a or 121f\n"
        "subprocess.CalledProcessError: Command '['ninja', '-v']' returned non-zero exit status 1.\n"
    )
    answer = explain_text(log)
    assert answer.matches == ()
    assert (answer.unknown.first_error.line, [each.line for each in answer.unknown.reports]) == (2, [3])
    alone = explain_text(log.splitlines()[2] + "\ntorch").matches
    assert "which is not in this text" in alone[0].cause


@cases(
    "log",
    {
        "NCCL without InfiniBand": "h:1:1 [0] NCCL INFO NET/IB : No device found.\nh:1:1 [0] NCCL INFO NET/Socket : Using eth0\n"
        "h:1:1 [0] NCCL INFO comm 0x1 rank 0 nranks 8 - Init COMPLETE\n# Avg bus bandwidth : 123",
        "nvidia-smi": "| NVIDIA-SMI 550.54.14    Driver Version: 550.54.14    CUDA Version: 12.4     |\n"
        "| GPU  Name        Persistence-M| Bus-Id        Disp.A | Volatile Uncorr. ECC |\n"
        "|   0  NVIDIA A100         Off  | 00000000:07:00.0 Off |                    0 |",
        "uv copies": "warning: Failed to hardlink files; falling back to full copy.\nInstalled 3 packages in 1.2s\n + torch==2.8.0",
        "torch on a GB10": "Found GPU0 NVIDIA GB10 which is of cuda capability 12.1.\n Minimum and Maximum cuda capability"
        " supported by this version of PyTorch is\n (8.0) - (12.0)\n{'loss': 1.2, 'epoch': 1.0}",
        "torch 2.13 on a GB10": "Found GPU0 NVIDIA GB10 which is of compute capability (CC) 12.1.\nThe following list shows"
        " the CCs this version of PyTorch was built for and the hardware CCs it supports:\n"
        "- 12.0 which supports hardware CC >=12.0,<13.0",
        "git log": f"commit {'3f' * 20}\nAuthor: A\n    A download that failed: No space left on device",
        "git log --oneline": "4625b912 Kills and full disks\n76bccf28 RuntimeError: CUDA out of memory is told\n3f3f3f3f Docs",
        "a changelog": '## 1.8.2\n- Fix a crash\n- Docs: "could not select device driver" on Fedora',
        "training": "Epoch 1/3\n{'loss': 1.23, 'grad_norm': 0.5}\n0 errors, 0 failed\nSaving model checkpoint to out/checkpoint-1",
    },
)
def test_a_healthy_log_is_called_healthy(log):
    answer = explain_text(log)
    assert answer.is_healthy
    assert answer.nearest == ()


@pytest.mark.parametrize(
    "raised",
    [
        "queue.Empty",
        "StopIteration",
        "pyarrow.lib.ArrowInvalid: straddling object",
        "zlib.error: -3",
        "numpy._core._exceptions._UFuncCastingError: no",
    ],
)
def test_a_traceback_is_never_healthy_and_its_exception_is_the_error_whatever_its_name(raised):
    frames = "".join(f'  File "/srv/{name}.py", line 3, in {name}\n    {name}()\n' for name in ("main", "load"))
    answer = explain_text(f"Epoch 1/3\nTraceback (most recent call last):\n{frames}{raised}\n")
    assert not answer.is_healthy
    assert answer.unknown.first_error.text == raised


def test_an_error_beside_a_harmless_line_counts():
    answer = explain_text("NCCL INFO NET/IB : No device found\nCUDA out of memory. Tried to allocate 2.00 GiB")
    assert not answer.is_healthy
    assert [match.code for match in answer.matches] == ["MEM004"]


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("torch.cuda.is_available() is False", "CPU-only"),
        ("loss is nan", "float16"),
        ("Killed", "memory"),
        ("devcontainer up failed", "engine"),
        ("pip: command not found", "pip is not installed"),
        ("nvidia-smi works in PowerShell but not in Ubuntu", "WSL"),
        ("docker desktop does not see my GPU", "GPU"),
        ("bash: uv: command not found", "uv is not installed"),
    ],
)
def test_symptoms_in_the_words_of_an_asker_are_known(text, word):
    match = explain_text(text).matches[0]
    assert word in match.cause
    assert match.fix.commands


def test_a_word_alone_in_its_line_is_no_part_of_a_sentence():
    assert not explain_text("the process that Killed a mockingbird wrote a book\nand another line\nand a third").matches


@pytest.mark.parametrize(
    "text",
    [
        "bash: nvidia-smi: command not found\nUnsupported gpu architecture 'compute_35'",
        "slurmstepd: error: Detected 1 oom_kill event in StepId=1.0",
    ],
)
def test_no_fix_with_a_choice_or_a_gap_is_certain(text):
    assert all(match.confidence is not Confidence.CERTAIN for match in explain_text(text).matches)


@cases(
    "line, is_healthy",
    {
        "quotes a warning": ("ERROR:   unpackSIF failed: extract command failed: WARNING: no passwd file", False),
        "a kernel's code": ("nvidia 0000:01:00.0: PM: pci_pm_suspend(): nv_pmops_suspend [nvidia] returns -5", False),
        "Python's logging": ("2026-11-23 04:00:02,1 - trainer - ERROR - rank 3 is gone", False),
        "vLLM": ("ERROR 11-23 04:00:02 [core.py:12] rank 3 is gone", False),
        "klog": ("E1123 04:00:02.123456 77 pod_workers.go:19] rank 3 is gone", False),
        "GitHub Actions": ("##[error]rank 3 is gone", False),
        "a warning of Python's logging": ("2026-11-23 04:00:02,1 - trainer - WARNING - rank 3 waits", True),
        "a count of none": ("========= ERROR SUMMARY: 0 errors", True),
        "a warning": ("WARNING: the cache could not be read, it is made again", True),
    },
)
def test_the_level_of_a_line_counts_before_what_it_quotes(line, is_healthy):
    lines = [f"INFO: step {number} of 40 done" for number in range(40)]
    assert explain_text("\n".join([*lines, line, "INFO: done"])).is_healthy is is_healthy


def test_the_commands_of_a_log_that_starts_with_a_commit_still_fail():
    """CI prints the commit that it builds, and not as git log does."""
    log = "HEAD is now at 3f3f3f3f Kills and full disks\nmake: *** [Makefile:82: modules] Error 2\nmake: leaving"
    assert explain_text(log).unknown.first_error.line == 2


@pytest.mark.parametrize(
    ("text", "command"),
    [
        ("torch 2.4.0\nValueError: Foo needs torch >= 2.6", "pip install 'torch>=2.6'"),
        ("torch 2.7.0\nValueError: Foo needs torch >= 2.6", None),
        ("ImportError: this torch loader requires `peft`>=0.15.0", "pip install 'peft>=0.15.0'"),
        ("ValueError: this torch order requires tables >= 4", None),
    ],
)
def test_a_requirement_of_a_known_package_is_installed_where_the_text_does_not_meet_it(text, command):
    commands = [each for match in explain_text(text).matches for each in match.fix.commands]
    assert commands == ([command] if command else [])


@pytest.mark.parametrize(
    ("words", "command"),
    [
        ("k3s", "sudo systemctl restart k3s"),
        ("k0s", "sudo nvidia-ctk runtime configure --runtime=containerd --config=/etc/k0s/containerd.d/nvidia.toml"),
        (
            "rke2 nvidia-container-toolkit-daemonset-x",
            "CONTAINERD_SOCKET --set toolkit.env[1].value=/run/k3s/containerd/containerd.sock",
        ),
        ("kubectl", "sudo systemctl restart containerd"),
    ],
)
def test_a_cluster_with_its_own_containerd_gets_its_paths(words, command):
    match = explain_text(f'{words}: failed to get sandbox runtime: no runtime for "nvidia" is configured').matches[0]
    assert any(each.endswith(command) for each in match.fix.commands), match.fix.commands


def test_options_of_a_command_for_containerd_stay():
    match = explain_text("k3s nvidia-device-plugin: Detected non-NVML platform: could not load NVML library").matches[0]
    assert any(each.endswith("k3s/agent/etc/containerd/config.toml --set-as-default") for each in match.fix.commands)


def test_the_toolkit_is_installed_where_a_text_names_the_engine_and_no_distribution():
    text = 'docker: Error response from daemon: could not select device driver "" with capabilities: [[gpu]].'
    match = explain_text(text).matches[0]
    assert "sudo apt-get install -y nvidia-container-toolkit  # Ubuntu" in match.fix.commands
    assert all(cause.fix.commands != match.fix.commands for cause in match.alternatives)


def test_an_extension_that_no_table_knows_is_built_from_its_folder():
    (match, *_) = explain_text(
        "ImportError: /opt/env/lib/python3.11/site-packages/own_ops/_C.cpython-311-x86_64-linux-gnu.so: undefined symbol:"
        " _ZN5torch3jit11parseSchemaERKSsb"
    ).matches
    assert match.fix.commands[-1].endswith("own_ops  # built from a folder: its path in place of own_ops")


@pytest.mark.parametrize(
    ("log", "said"),
    [
        ("FAILED: build/a.o\nnvcc -c a.cu\ngcc: No such file or directory\n", "gcc: No such file or directory"),
        ("make[2]: *** [Makefile:9: a.o] Error 1\nfoo: invalid mode 7\n", "foo: invalid mode 7"),
        ("FAILED: build/a.o\nninja: build stopped: subcommand failed.\n", "FAILED: build/a.o"),
        ("ERROR ~ Error executing process > 'A'\nCommand error:\n  fatal error: no room\n", "fatal error: no room"),
    ],
)
def test_what_a_program_says_goes_before_what_its_build_tool_reports(log, said):
    assert explain_text(log, is_ours=True).unknown.first_error.text == said


def test_a_line_that_sends_the_reader_on_follows_from_the_error_that_tells():
    log = "sinfo -R\nKill task failed root 2024\nslurmd: pyxis: mkdir: cannot create directory '/raid/enroot': Permission denied\n"
    (match,) = explain_text(log).matches
    assert match.code == "CON013"
    assert "Kill task" in explain_text(log.splitlines()[1]).matches[0].matched


@pytest.mark.parametrize(
    ("log", "package"),
    [
        ("Collecting torch\nCollecting flash-attn==0.2.8\n", "flash-attn"),
        (
            "Collecting torch\nCollecting einops\n  File /tmp/pip-install-x1/flash-attn_0123456789abcdef0123456789abcdef/setup.py\n",
            "flash-attn",
        ),
        (f"Collecting torch\nCollecting flash-attn\n{'b' * 9}\n" + "a line\n" * 20, "<package>"),
    ],
)
def test_of_several_packages_the_last_above_the_error_is_meant(log, package):
    match = explain_text(f"{log}in setup.py\nModuleNotFoundError: No module named 'torch'\n").matches[0]
    assert f"pip install --no-build-isolation {package}" in match.fix.commands


def test_python_names_an_unfinished_import_and_no_release():
    text = "ImportError: cannot import name 'ops' from partially initialized module 'vllm' (most likely due to a circular import)"
    assert "vllm is imported before its own import has finished" in explain_text(text).matches[0].cause
    assert explain_text(text, read_history=lambda _: pytest.fail("a release was read")).not_read == ""


def test_a_cause_that_waits_for_words_which_the_text_lacks_is_only_possible():
    cause = explain_text("sbatch: error: Batch job submission failed: Invalid feature specification").matches[0].cause
    assert "features (--constraint)" in cause


def test_a_port_that_another_program_reports_is_none_of_ours():
    assert (
        explain_text(
            "nginx: [emerg] bind() to 0.0.0.0:80 failed (98: Address already in use)\nnginx: test failed\n"
        ).matches
        == ()
    )
