"""Logs of several errors, services and languages: the first cause, its line, and what follows from it."""

import random
import time

import pytest

from devkit.doctor.known_errors import find_known_errors
from devkit.doctor.signatures.log_text import HEAD, TAIL, read_excerpts, read_words
from tests.cases import cases

CPU_TORCH = "AssertionError: Torch not compiled with CUDA enabled"
NO_GPU = "RuntimeError: No CUDA GPUs are available"


@cases(
    "log, line, source",
    {
        "the first of two": (f"a\n\n\nb\n{CPU_TORCH}\nc\n{CPU_TORCH}", 5, ""),
        "Windows line ends": (f"a\r\nb\r\n{CPU_TORCH}\r\n", 3, ""),
        "progress bars are one line": (f" 1%\r 2%\r 3%\n{CPU_TORCH}", 2, ""),
        "Compose": (f"db-1  | ready\ntrainer-1  | x\ntrainer-1  | {CPU_TORCH}", 3, "trainer-1"),
        "torchrun": (f"[rank3]: x\n[rank3]: {CPU_TORCH}", 2, "rank 3"),
        "srun --label": (f"[default0]:x\n7: {CPU_TORCH}", 2, "rank 7"),
        "vLLM": (f"(EngineCore_0 pid=41) ERROR 11-23 04:00:01 [core.py:586] {CPU_TORCH}", 1, "EngineCore_0"),
        "Ray": (f"(RayWorker rank=2 pid=41, ip=10.0.0.1) {CPU_TORCH}", 1, "RayWorker rank=2"),
        "journald": (f"Nov 23 04:00:01 node7 train.sh[812]: {CPU_TORCH}", 1, ""),
        "a wrapped line": ("x\nAssertionError: Torch not compiled\nwith CUDA enabled", 2, ""),
        "a broken word": ("x\nAssertionError: Torch not compiled with CU\nDA enabled", 2, ""),
    },
)
def test_an_error_is_found_with_its_line_and_who_wrote_it(log, line, source):
    (match,) = find_known_errors(log)
    assert (match.code, match.line, match.source) == ("PYT001", line, source)


@cases(
    "log",
    {
        "journald": "Nov 23 04:00:01 node7 kernel: NVRM: Xid (PCI:0000:3b:00): 79, pid=812,\n"
        "Nov 23 04:00:01 node7 kernel: NVRM: name=python, GPU has fallen off the bus.",
        "dmesg": "[ 1234.567890] NVRM: Xid (PCI:0000:3b:00): 79,\n[ 1234.567891] NVRM: GPU has fallen off the bus.",
        "Kubernetes": "2026-11-23T04:00:01.1Z stderr F NVRM: Xid (PCI:0000:3b:00): 79, pid=1",
    },
)
def test_an_xid_is_found_in_every_kernel_log(log):
    assert find_known_errors(log)[0].code == "GPU002"


def test_lines_that_only_report_a_failure_follow_from_the_cause():
    log = f"a\n{NO_GPU}\nmake: leaving\nsubprocess-exited-with-error\ntrainer-1 exited with code 1\n"
    (match,) = find_known_errors(log)
    assert match.line == 2
    assert [each.line for each in match.consequences] == [4, 5]


CHAINS = (
    "The above exception was the direct cause of the following exception:",
    "During handling of the above exception, another exception occurred:",
)


@pytest.mark.parametrize("chain", CHAINS)
def test_of_a_chained_traceback_the_first_exception_is_the_cause(chain):
    between = "".join(f'  File "/app/step{number}.py", line 3, in load\n' for number in range(20))
    gated = "GatedRepoError: 401 Client Error"
    (match,) = find_known_errors(f"{between}{CPU_TORCH}\n\n{chain}\n\n{between}{gated}\n")
    assert (match.code, match.line) == ("PYT001", 21)
    assert [(each.line, each.matched in gated) for each in match.consequences] == [(45, True)]
    assert len(find_known_errors(f"{between}{CPU_TORCH}\n{between}{gated}\n")) == 2


def test_of_several_services_the_one_that_failed_first_comes_first():
    first, second = "db-1  | x509: certificate has expired or is not yet valid", f"web-1  | {CPU_TORCH}"
    filler = "web-1  | waiting\n" * 60
    for log in (f"{first}\n{filler}{second}", f"{second}\n{filler}{first}"):
        assert [match.line for match in find_known_errors(log)] == [1, 62]


@cases(
    "line, code",
    {
        "de": ("libcuda.so.1: Kann die Shared-Object-Datei nicht öffnen: Datei oder Verzeichnis nicht gefunden", "CON001"),
        "zh": ("ImportError: libcuda.so.1: 无法打开共享对象文件: 没有那个文件或目录", "CON001"),
        "ja": ("libcuda.so.1: 共有オブジェクトファイルを開けません: そのようなファイルやディレクトリはありません", "CON001"),
        "de, disk": ("OSError: [Errno 28] Auf dem Gerät ist kein Speicherplatz mehr verfügbar: '/root/x'", "STO002"),
        "zh, disk": ("写入失败\uff1a设备上没有空间", "STO002"),
        "ja, disk": ("書き込みエラー: デバイスに空き領域がありません", "STO002"),
        "de, bash": ("bash: nvcc: Kommando nicht gefunden.", "CUD008"),
        "zh, bash": ("bash: nvcc\uff1a未找到命令", "CUD008"),
        "ja, bash": ("bash: nvcc: コマンドが見つかりません", "CUD008"),
        "de, key": ("modprobe: ERROR: could not insert 'nvidia': Der notwendige Schlüssel ist nicht verfügbar", "DRV001"),
    },
)  # fmt: skip
def test_messages_of_the_system_are_known_in_other_languages(line, code):
    assert find_known_errors(line)[0].code == code


@pytest.mark.parametrize(
    ("translated", "english"),
    [
        ("E: Paket nvidia-driver-999 kann nicht gefunden werden.", "Unable to locate package nvidia-driver-999"),
        ("E: 无法定位软件包 nvidia-driver-999", "Unable to locate package nvidia-driver-999"),
        ("E: パッケージ nvidia-driver-999 が見つかりません", "Unable to locate package nvidia-driver-999"),
        ("E: Für Paket »cuda« existiert kein Installationskandidat.", "Package 'cuda' has no installation candidate"),
        ("E: 无法下载 https://example.org/x  404", "Failed to fetch https://example.org/x"),
    ],
)
def test_messages_of_apt_are_put_in_english_with_their_names(translated, english):
    assert english in read_words(translated).shown


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        (r"Error loading C:\tools\nets\torch\lib\rt.dll", None),
        (r"…\normal\Lib\site-packages\torch\lib\shm.dll", None),
        (r"C:\Program Files\nvidia\bin\nvcc.exe", None),
        (r'{"log": "a\nb C:\\nets\\torch\tc"}', r'{"log": "a b C:\\nets\\torch c"}'),
        (r"for x:\n  pass\r\nTrue", "for x: pass True"),
    ],
)
def test_a_path_of_windows_has_no_escapes(line, shown):
    assert read_words(line).shown == (shown or line.replace("…", "..."))


@pytest.mark.full
def test_a_long_log_is_read_in_linear_time_and_little_memory():
    line = b"2026-01-01 10:00:00 step 12345 error rate 0.123 failed=0 could not be better, 12345 tokens\n"
    chunk = line * (2**20 // len(line))
    error = f"{CPU_TORCH}\n".encode()
    started = time.process_time()
    excerpts = read_excerpts(error if number == 10 else chunk for number in range(21))
    took_s = time.process_time() - started
    (match,) = find_known_errors(excerpts)
    assert match.line == 10 * chunk.count(b"\n") + 1
    assert sum(len(excerpt.text) for excerpt in excerpts) < 2 * (HEAD + TAIL)
    assert took_s < 1, "20 MB; 100 MB may take 5 s"


@pytest.mark.parametrize("size", [1, HEAD - 1, HEAD, HEAD + 1, HEAD + TAIL, HEAD + TAIL + 2**20])
@pytest.mark.parametrize("chunk_size", [1000, 2**20])
def test_excerpts_start_where_they_say(size, chunk_size):
    data = b"".join(b"line %d of error: %d\n" % (number, number) for number in range(1, size // 20 + 2))
    excerpts = read_excerpts(data[start : start + chunk_size] for start in range(0, len(data), chunk_size))
    assert excerpts[0].text.startswith("line 1 ")
    assert excerpts[-1].text.endswith(data[-10:].decode())
    for excerpt in excerpts:
        assert excerpt.text.startswith(f"line {excerpt.line} ") or excerpt is excerpts[0]


PIECES = (
    *("\x1b[31m", "\x1b]0;", "^[", "\\u001b[", "> ", "#1 0.1 ", "a" * 50, "| ", "[rank0]: ", "((", "[[", '"', "'", "\\", "\\\\n"),
    *("Xid (", "error: ", "CUDA error", "torch", "lib", ".so", "/a/", "{", "}", "\n", "\r", "\t", "é", "无法", "…", "0.1.2.3", "sm_"),
    *("cannot open shared object file", "No such file or directory", "version `", "undefined symbol: ", "compute capability "),
)  # fmt: skip


def read_pieces(seed, size):
    """A text of three kinds of pieces, and the processor time that it takes."""
    choose = random.Random(seed)
    few = choose.sample(PIECES, 3)
    text = "".join(choose.choice(few) * choose.randint(1, 30) for _ in range(size // 30))[:size]
    find_known_errors(text[:1000])
    started = time.process_time()
    find_known_errors(text)
    return few, time.process_time() - started


def test_a_text_of_any_pieces_takes_little_time():
    assert [few for few, took_s in (read_pieces(seed, 30_000) for seed in range(6)) if took_s >= 0.5] == []


@pytest.mark.full
def test_a_long_text_of_any_pieces_takes_linear_time():
    assert [few for few, took_s in (read_pieces(seed, 600_000) for seed in range(12)) if took_s >= 5] == []
