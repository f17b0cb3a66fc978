"""The frames of the tracebacks in a text."""

import re
from collections.abc import Iterator

_FRAME = re.compile(
    r"(?P<folder>File \"[^\"\n]{0,300}?(?:site|dist)-packages[/\\]|(?<![\w(./\\-])[^\s\"'(\[]{0,300}?(?:site|dist)-packages[/\\])"
    r"(?P<file>(?:[\w.-]+[/\\])*[\w-]+\.py)(?=[\"\]:]| in )|File \"(?P<other>[^\"]{1,300})\", line \d|(?P<cell>Cell In\[|<ipython-input-)"
)
"""A frame of a traceback: of an installed package, in the forms of Python, IPython and rich, or of the program itself."""
_STANDARD_FILE = re.compile(
    r"^<(?!stdin)|[/\\][Ll]ib[/\\](?:python3\.\d+[/\\])?(?!.*(?:site|dist)-packages)[\w/\\]+\.py$"
)
_MAX_SEARCHED = 64 * 1024


def list_frames(shown: str) -> Iterator[tuple[str, str]]:
    """Yield for each frame the folder of installed packages and the file below it; both "" for the program's own files."""
    for found in _FRAME.finditer(shown[-_MAX_SEARCHED:]):
        if found["file"]:
            yield found["folder"].removeprefix('File "').rstrip("/\\"), found["file"].replace("\\", "/")
        elif found["cell"] or not _STANDARD_FILE.search(found["other"]):
            yield "", ""


def list_packages(shown: str) -> list[str]:
    """List the packages of the frames above an error, "" for files of the program's own."""
    return [re.split(r"[/.]", file, maxsplit=1)[0] for _, file in list_frames(shown)]
