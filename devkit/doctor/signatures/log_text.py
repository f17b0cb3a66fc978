"""The words of a log without the noise around them, and the line of each."""

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import islice, pairwise
from pkgutil import get_data

from devkit.doctor.signatures.patterns import list_words

HEAD = 512 * 1024
TAIL = 1536 * 1024
"""Characters of the beginning and of the end of a long text that are searched."""
MIDDLE = 512 * 1024
"""Characters between them, around lines that look like errors."""
MIN_PREFIXED = 4

_STRONG = (
    *(
        b"error: ",
        b"error] ",
        b"exception: ",
        b"fatal",
        b"traceback",
        b"failed: ",
        b"failure: ",
        b"xid (",
        b"not found",
    ),
    *(b"killed", b"out of memory", b"no space", b"denied", b"insufficient"),
)
_WEAK = (b"error", b"failed", b"cannot ", b"could not", b"unable to")
"""Words of lines that are read in the middle of a long log, those that more often tell a cause first."""
_HITS_PER_CHUNK = 64
_AROUND_BYTES = 1536
"""Bytes read before and after a strong word; of a weak one a tenth."""
_LONGEST_LINE = 64 * 1024
_DIGITS = bytes.maketrans(b"0123456789abcdefABCDEF", b"0" * 22)

_ANSI = re.compile(
    r"(?:\x1b|\^\[|\\u001b|\\x1b|\\033)(?:\[[0-9;?]{0,20}[A-Za-z]|\][^\x07\x1b\n]{0,300}(?:\x07|\x1b\\))"
)
_BARE_COLOR = re.compile(r"\[(?:\d{1,3}(?:;\d{1,3}){0,4}m|m(?!\w))")
_PREFIX = re.compile(
    r"^(?:"
    r"(?:>[ ]?){1,9}"  # a quotation in mail or Markdown
    r"|#\d{1,4} \d{1,6}\.\d{1,6} |\d{1,5}\.\d{2,6} (?=\D)"  # BuildKit, and its summary
    r"|(?P<service>[\w.-]{1,80}) {0,40}\| "  # Compose
    r"|\[?(?:rank|default)?(?P<rank>\d{1,5})\]?: "  # torchrun, srun --label
    r"|\((?P<worker>[\w-]{1,40}(?: rank=\d{1,5})?) pid=\d{1,9}(?:, ip=[\d.]{7,15})?\) "  # vLLM, Ray
    r"|[│║▏┃╎] ?"
    r"|<\d{1,3}>"  # syslog's priority
    r"|(?:stdout|stderr) [FP] "  # Kubernetes
    r"|\[pod/(?P<pod>[\w.-]{1,80}/[\w.-]{1,80})\] "  # kubectl logs --prefix
    r"|\[?\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d[\d.,:+Z-]{0,16}\]? (?:[\w.-]{1,64} (?=[\w./@-]{1,64}\[\d{1,9}\]: ))?"
    r"|\[?\d\d:\d\d:\d\d(?:[.,]\d{1,9})?\]? "  # GitLab, and programs that print the time alone
    r"|(?:- )?(?:[\w.]{1,60} - )?(?:DEBUG|INFO|WARNING|ERROR|CRITICAL) - "  # Python's logging
    r"|[A-Z][a-z]{2} \d{1,2} \d\d:\d\d:\d\d (?:[\w.-]{1,64} (?=[\w./@-]{1,64}(?:\[\d{1,9}\])?: ))?"  # journald
    r"|kernel: |(?P<program>[\w./@-]{1,64})\[\d{1,9}\]: "  # a system's log
    r"|[IWEF]\d{4} \d\d:\d\d:\d\d\.\d{1,6} \d{1,9} [\w.-]{1,80}:\d{1,6}\] "  # klog
    r"|(?:INFO|WARNING|ERROR) \d\d-\d\d \d\d:\d\d:\d\d \[[\w./-]{1,80}:\d{1,6}\] "  # vLLM
    r"|##\[\w{1,12}\]"  # GitHub Actions
    r"|\[ {0,8}\d{1,9}\.\d{6}\] "  # the kernel's clock
    r"|NVRM: "  # the driver, at the start of each line of one message
    r")"
)
_WARNING = re.compile(r"\W{0,2}(?:WARN(?:ING)?|INFO|DEBUG)\b|\S{1,60} level=(?:warn|info|debug)")
_ERROR_LEVEL = re.compile(r"\b(?:ERROR|CRITICAL)\b|^[EF]\d{4} |^##\[error\]")
"""The level of an error in what a tool puts before a line."""
_BAR = re.compile(r"[^|]{0,80}?\d{1,3}%[ ]?[|▕]")
_MAX_PREFIXES = 4
_FRAME_END = re.compile(r"[ ]?[│║▕┃╎]$")
_TYPOGRAPHY = str.maketrans({
    "\u2018": "'", "\u2019": "'", "\u201c": '"', "\u201d": '"', "\u00bb": "'", "\u00ab": "'", "\u00a0": " ", "\u200b": "",
    "\ufeff": "", "\0": "", "\u2026": "...", "\uff1a": ": ",
})  # fmt: skip
_ESCAPED = re.compile(r"(?<!\\)(\\{1,40}+)(?:r\\{1,40}n|[nrt\"'`])")
_SEPARATOR = re.compile(r"(?:(?<![A-Za-z0-9])[A-Z]:|(?<!\\)(?=\\{1,40}+(?![abefnrtuvx])[A-Za-z]))(\\{1,40}+)(?=\w)")
"""What separates folders in a path of Windows: backslashes after a drive, or before a letter that no escape has."""
_ESCAPES = (
    ("\\u0026", "&"), ("\\u003e", ">"), ("\\u003c", "<"), ("&gt;", ">"), ("&lt;", "<"), ("&quot;", '"'), ("&#39;", "'"),
    ("&#x27;", "'"), ("&amp;", "&"),
)  # fmt: skip

_FIELD = re.compile(
    r"(?<![a-z0-9])(?:(?:lib)?(?:nvidia|cuda|cudart|cudnn|cublas(?:lt)?|cufft|cusolver|cusparse|curand|cupti|[nr]ccl|nvrtc|nvjitlink|nvinfer)"
    r"|nvml|nvcc|nvidia_\w+|libnv\w+|gpus?|torch\w*|libtorch\w*|pytorch|tensors?|vllm|sglang|tensorflow|keras|jax|jaxlib|xla"
    r"|triton|rocm|hip|amdgpu|tensorrt|onnx|onnxruntime|transformers|huggingface|safetensors|gguf|ggml|ollama|llama|text[_-]generation"
    r"|flashinfer|flash[ _-]?attention|awq|gptq|sgl|deepspeed|flash[_-]attn|bitsandbytes|xformers|hf_\w+"
    r"|peft|lora|qlora|liger\w*|cupy|numba|mlx|kfd|vram|fp16|bf16|fp8|diffusers|unsloth\w*|tiktoken|sentencepiece|comfyui|dataloader|qwen\d*"
    r"|ultralytics|mmcv|mmdet|detectron2|timm|decord|lightning\.pytorch|mamba[_-]ssm|causal[_-]conv1d|paddlepaddle|ctranslate2|dgx|jetson|(?:auto|local|mini|nano|private)gpt)"
    r"(?![a-z])"
)
"""Words of this field."""
_NAMES = (
    *("transformers", "pytorch", "cuda", "nvidia", "llama", "whisper", "diffusion", "yolo", "huggingface", "megatron"),
    *("nerfstudio", "gsplat", "gaussian-splatting", "isaacsim", "isaaclab", "isaacgym", "jupyter", "colab", "podman"),
    *("devcontainer", "vscode-server", "singularity", "apptainer", "tokenizer", "mujoco", "gymnasium", "pytorch3d"),
    *("detectron", "mmdet", "mmcv", "openmmlab", "paddle", "mindspore", "autogluon", "cudf", "cuml"),
    *("exllama", "kobold", "automatic1111", "invokeai", "fooocus", "kohya", "lmdeploy", "xinference"),
    *("deep-learning", "deep_learning", "custom_nodes", "conda/envs", "conda3/envs"),
    *("miniconda", "anaconda", "miniforge", "tensorboard", "wandb"),
    *("trainingarguments", "forcausallm", "from_pretrained", "autotokenizer", "automodel", "trust_remote_code"),
    *("packages/accelerate", "from 'accelerate", "packages/trl", "from 'trl", "packages/datasets/", "packages/scipy"),
)
"""Names that are of this field within other words, too: those of projects, folders and environments."""
_OF_CONTAINERS = re.compile(
    r"(?<![a-z])(?:wsl|docker\w*|podman|buildah|(?:dev)?containers?|containerd|apptainer|singularity|enroot|slurm\w*|kube\w*|conda)"
    r"(?![a-z])|/workspaces?/|oci runtime"
)
"""Words of container engines, clusters and environments, and of what runs in them."""
_OTHER_PROGRAM = re.compile(
    r"(?<![\w-])(?:node(?:js)?|npm|npx|yarn|pnpm|webpack|vite|jest|java|gradle|mvn|php[\w.]*|ruby|rails|nginx|apache2?|httpd|caddy"
    r"|postgres\w*|psycopg2?|mysqld?|mariadb|mongod?|redis(?:-server)?|elasticsearch|kafka|django|flask|celery|terraform|sshd?|postfix)"
    r"(?:\[\d+\])?(?=[:/ ]|\.(?!\d)|$)|\.(?:[jt]sx?|java|kt|rb|php):\d|\b(?:get|post|put) /\S* (?:http/)?\d|\bserver\.js\b"
)
"""Programs of other fields, as they name themselves before a message, in a command or in a frame; and requests to a server."""
_OF_HISTORY = re.compile(
    r"(?P<commit>commit [0-9a-f]{40}\b|# [Cc]hange ?[Ll]og)|(?P<heading>[0-9a-f]{7,12} [A-Za-z]|#{1,3} (?:\[?v?\d+\.\d|Unreleased))"
    r"|[-*] [A-Z`]|#{2,4} [A-Z][a-z]+$"
)
"""A line of git log, of git log --oneline, or of a changelog."""
_MAX_HISTORY = 400
NEAR = 600
"""Characters around an error in which words say more about it."""


@dataclass(frozen=True)
class Excerpt:
    """A part of a log, and the number of its first line."""

    line: int
    text: str


@dataclass(frozen=True)
class Words:
    """A text to search, and the same in lower case with the same positions.

    `starts` are the positions where its lines begin, `lines` their numbers, `sources` the service, rank or worker that
    wrote each of them, and `programs` those that a system's log names, "" where the text does not show it. `warnings` are the
    positions of those that are warnings, `errors` of those whose prefix had the level of an error.
    """

    shown: str
    lowered: str
    starts: tuple[int, ...] = ()
    lines: tuple[int, ...] = ()
    sources: tuple[str, ...] = ()
    programs: tuple[str, ...] = ()
    warnings: frozenset[int] = frozenset()
    errors: frozenset[int] = frozenset()

    @cached_property
    def words(self) -> frozenset[str]:
        """Its words, by which error texts that it cannot have are ruled out."""
        return list_words(self.lowered)

    @cached_property
    def spans(self) -> tuple[tuple[int, int], ...]:
        """The place at which each line starts, and the one of the next."""
        return tuple(pairwise((*self.starts, len(self.shown) + 1)))

    def list_lines(self) -> Iterator[tuple[int, str, int]]:
        """Yield the number, the text and the position of each line."""
        for (start, end), line in zip(self.spans, self.lines, strict=False):
            yield line, self.shown[start : end - 1], start

    @cached_property
    def is_about_gpus(self) -> bool:
        """Return True for a text with a word of this field."""
        return is_about_gpus(self.lowered)

    @cached_property
    def is_history(self) -> bool:
        """Return True for a list of changes, whose lines tell of errors that were mended: git log, or a changelog."""
        matches = [_OF_HISTORY.match(self.shown[start : end - 1]) for start, end in self.spans[:_MAX_HISTORY]]
        is_log = bool(matches) and matches[0] is not None and matches[0]["commit"] is not None
        return is_log or (len(matches) > 2 and all(matches) and any(found and found["heading"] for found in matches))

    def cut(self, start: int, end: int) -> "Words":
        """Return a part, without its lines."""
        return Words(self.shown[start:end], self.lowered[start:end])

    def join_lines(self) -> "Words":
        """Return the words with nothing between the lines, as a terminal that wraps within words broke them."""
        shown, lowered = (
            "".join(text[start : end - 1] for start, end in self.spans) for text in (self.shown, self.lowered)
        )
        starts = tuple(start - place for place, start in enumerate(self.starts))
        return Words(shown, lowered, starts, self.lines, self.sources)

    def find_first(self, found: re.Match[str]) -> int:
        """Return the position where what was found occurs first."""
        return self.lowered.find(self.lowered[found.start() : found.end()])

    def find_line(self, position: int) -> int:
        """Return the number of the line at a position, counted from 1; 0 where it is unknown."""
        return self.lines[bisect_right(self.starts, position) - 1] if self.starts else 0

    def find_line_end(self, position: int) -> int:
        """Return the position where the line at a position ends."""
        place = bisect_right(self.starts, position)
        return self.starts[place] - 1 if place < len(self.starts) else len(self.shown)

    def is_warning(self, position: int) -> bool:
        """Say if the line at a position calls itself a warning."""
        return bool(self.warnings) and self.starts[bisect_right(self.starts, position) - 1] in self.warnings

    def is_whole_line(self, found: re.Match[str]) -> bool:
        """Say if a line has nothing but what was found; a text without lines is one."""
        if not self.starts:
            return not (self.shown[: found.start()] + self.shown[found.end() :]).strip(" .:")
        end = self.find_line_end(found.start())
        return found.start() in self.starts and not self.shown[found.end() : end].strip(" .:")

    def find_source(self, position: int) -> str:
        """Return the service, rank or worker that wrote the line at a position, "" where it is unknown."""
        return self.sources[bisect_right(self.starts, position) - 1] if self.starts else ""

    def is_of_another_field(self, start: int, end: int) -> bool:
        """Say if the words around an error, or the log that has it, name a program of another field and nothing of this one."""
        program = self.programs[bisect_right(self.starts, start) - 1] if self.starts else ""
        around = f"{program}: {self.lowered[max(0, start - NEAR) : end + NEAR]}"
        return bool(_OTHER_PROGRAM.search(around)) and not (is_about_gpus(around) or _OF_CONTAINERS.search(around))


def read_words(text: str | Iterable[Excerpt]) -> Words:
    """Read the words of a text, or of the excerpts of a long one, without time stamps, colors and line prefixes.

    All are on one line with single spaces, so that wrapped lines read as they were written.

    Of a text that is too long the beginning and the end are kept.
    """
    if isinstance(text, str) and len(text) <= HEAD + TAIL:
        text = (Excerpt(1, text),)
    elif isinstance(text, str):
        text = (Excerpt(1, text[:HEAD]), Excerpt(1 + text.count("\n", 0, len(text) - TAIL), text[-TAIL:]))
    words: list[str] = []
    starts, lines, sources, programs, warnings, errors = [], [], [], [], [], []
    position = 0
    for excerpt in text:
        for number, line in enumerate(_clean(excerpt.text).split("\n"), excerpt.line):
            if not line:
                continue
            parts = line.splitlines()
            if len(parts) > 1 and "\r" in line:  # a carriage return writes over a progress bar
                parts = [part for part in parts[:-1] if not _BAR.match(part)] + parts[-1:]
            for part in parts:
                plain = " ".join(part.split())
                source, program, is_warning, is_error = "", "", False, False
                if len(plain) >= MIN_PREFIXED:
                    is_warning = _WARNING.match(plain) is not None
                    plain, source, program, is_error = _strip_prefixes(plain)
                    is_warning = is_warning or _WARNING.match(plain) is not None
                if plain:
                    if is_warning:
                        warnings.append(position)
                    if is_error:
                        errors.append(position)
                    words.append(plain)
                    starts.append(position)
                    lines.append(number)
                    sources.append(source)
                    programs.append(program)
                    position += len(plain) + 1
    shown = " ".join(words)
    return Words(
        shown=shown,
        # ASCII alone is put in lower case: other letters may become more or fewer.
        lowered=shown.encode("ascii", "replace").lower().decode("ascii"),
        starts=tuple(starts),
        lines=tuple(lines),
        sources=tuple(sources),
        programs=tuple(programs),
        warnings=frozenset(warnings),
        errors=frozenset(errors),
    )


def _clean(text: str) -> str:
    """Remove typography, colors and escapes, and put messages of the system in English. No line is added or lost."""
    if not text.isascii():
        text = text.translate(_TYPOGRAPHY)
    text = _ANSI.sub("", text)
    for escape, plain in _ESCAPES:
        text = text.replace(escape, plain)
    if "\\" in text:
        text = "\n".join(map(_unescape_line, text.split("\n")))
    return _BARE_COLOR.sub("", translate(text))


def _unescape_line(line: str) -> str:
    """Replace escapes, however often they were escaped: \\n in JSON within a message within a message.

    As many backslashes as separate the folders of a Windows path in this line are not an escape: C:\\normal\\Lib.
    """
    separators = {found[1] for found in _SEPARATOR.finditer(line)} if "\\" in line else frozenset[str]()

    def unescape(found: re.Match[str]) -> str:
        last = found[0][-1]
        if last in "\"'`":
            return last
        return found[0] if found[1] in separators else "\r" if last in "nr" else " "

    return _ESCAPED.sub(unescape, line)


def _strip_prefixes(line: str) -> tuple[str, str, str, bool]:
    """Remove what tools put before a line, and the end of a frame around it.

    Returns: the rest, its source, its program, and whether the prefix has the level of an error.
    """
    source, program, is_error = "", "", False
    for _ in range(_MAX_PREFIXES):
        found = _PREFIX.match(line)
        if not found:
            break
        rank = f"rank {found['rank']}" if found["rank"] else ""
        source = source or found["service"] or found["pod"] or found["worker"] or rank
        program = program or (found["program"] or "").lower()
        is_error = is_error or _ERROR_LEVEL.search(found[0]) is not None
        line = line[found.end() :]
    return _FRAME_END.sub("", line), source, program, is_error


def is_about_gpus(lowered: str, *, least: int = 1) -> bool:
    """Say if a text in lower case has at least so many words of this field, or one of them so often."""
    found = sum(1 for _ in islice(_FIELD.finditer(lowered), least))
    return found == least or (least == 1 and any(name in lowered for name in _NAMES))


def read_excerpts(chunks: Iterable[bytes]) -> tuple[Excerpt, ...]:
    """Read a log of any length: its beginning, its end, and between them the lines around words of errors.

    A log that is short enough is one excerpt. Of lines that differ only in their numbers the first is read.
    """
    head, tail = b"", bytearray()
    line = 1
    middle: list[tuple[int, bytes]] = []
    left = {True: MIDDLE * 3 // 4, False: MIDDLE // 4}
    seen: set[bytes] = set()
    for chunk in chunks:
        tail += chunk
        if not head and len(tail) > HEAD:
            head = _take(tail, HEAD)
            line += head.count(b"\n")
        if len(tail) <= TAIL + _LONGEST_LINE:
            continue
        passed = _take(tail, len(tail) - TAIL)
        for number, part, is_strong in _find_telling(passed, line, seen):
            if len(part) <= left[is_strong]:
                middle.append((number, part))
                left[is_strong] -= len(part)
        line += passed.count(b"\n")
    if not middle and line == 1 + head.count(b"\n"):
        return (Excerpt(1, _decode(head + tail)),)
    return tuple(Excerpt(number, _decode(part)) for number, part in ((1, head), *middle, (line, bytes(tail))))


def _take(data: bytearray, size: int) -> bytes:
    """Take whole lines of at most `size` bytes away from the beginning of `data`, or a part of one that is longer."""
    end = data.rfind(b"\n", 0, size) + 1 or size
    taken = bytes(data[:end])
    del data[:end]
    return taken


def _decode(data: bytes) -> str:
    return data.decode("utf-8", errors="replace")


def _find_telling(data: bytes, line: int, seen: set[bytes]) -> Iterator[tuple[int, bytes, bool]]:
    """Yield what is around words of errors, the number of its first line, and whether the words are strong ones.

    Words that are in `seen` but for their numbers are left out.
    """
    lowered = data.lower()
    places: dict[int, bool] = {}
    for word in (*_STRONG, *_WEAK):
        place = -1
        for _ in range(_HITS_PER_CHUNK):
            place = lowered.find(word, place + 1)
            if place == -1:
                break
            places.setdefault(place, word in _STRONG)
    done = 0
    for place, is_strong in sorted(places.items()):
        shape = lowered[max(0, place - 16) : place + 48].translate(_DIGITS)
        if place < done or shape in seen:
            continue
        seen.add(shape)
        around = _AROUND_BYTES if is_strong else _AROUND_BYTES // 10
        start = max(done, data.rfind(b"\n", 0, max(0, place - around)) + 1, place - 2 * around)
        end = data.find(b"\n", place + around) + 1
        done = min(place + 2 * around, end or len(data))
        yield line + data.count(b"\n", 0, start), data[start:done], is_strong


@cache
def _load_messages() -> tuple[tuple[str, re.Pattern[str], str], ...]:
    """Return for each translation its longest part without a name, its pattern, and what replaces it, the longest first.

    Some translations are the beginning of others. `translations.txt` has a line for each message of the C library, apt, dpkg
    and bash: the English one, then the German, Chinese and Japanese ones; `{}` is a name that all of them have.
    Source: the message catalogs of glibc 2.36, apt 2.6, dpkg 1.21 and bash 5.2.
    """
    lines = (get_data(__package__, "translations.txt") or b"").decode().splitlines()
    rows = (line.split(" | ") for line in lines)
    pairs = sorted(
        ((said, english) for english, *others in rows for said in others), key=lambda pair: (-len(pair[0]), pair[0])
    )
    return tuple(
        (
            max(said.split("{}"), key=len).strip("'"),
            re.compile(re.escape(said).replace(r"\{\}", r"(\S{1,300})").replace("'", "[\"']")),
            english.replace("{}", r"\1"),
        )
        for said, english in pairs
    )


def translate(text: str) -> str:
    """Put the messages in a text in English."""
    for part, pattern, english in _load_messages():
        if part in text:
            text = pattern.sub(english, text)
    return text
