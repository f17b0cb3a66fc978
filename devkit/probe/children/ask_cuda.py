"""Call the CUDA driver library, as a separate program: cuInit may hang in the kernel, or crash.

Prints one JSON object per line as it goes: `{"call": NAME, "at_s": SECONDS}` before each call, `{"libcuda": PATH}`
once the library is loaded, `{"init": CODE, "name": NAME}`, `{"cuda": NUMBER}`, `{"count": NUMBER}`, at last
`{"end": true}`; or `{"error": MESSAGE}` when no libcuda can be loaded. It imports nothing of devkit.

    python -P ask_cuda.py
"""

import ctypes
import json
import sys
import time
from pathlib import Path

STARTED = time.monotonic()
LIBRARY = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
MAPS = Path("/proc/self/maps")


def emit(**line: object) -> None:
    """Print one line at once; a line kept in a buffer is lost when the process is killed."""
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def announce(name: str) -> None:
    """Announce the call that runs next."""
    emit(call=name, at_s=round(time.monotonic() - STARTED, 3))


def main() -> None:
    """Load libcuda as any CUDA program does, and start it."""
    announce(f"dlopen {LIBRARY}")
    try:
        library = ctypes.CDLL(LIBRARY)
    except OSError as error:
        emit(error=str(error))
        return
    emit(libcuda=find_loaded_libcuda())
    announce("cuInit")
    code = int(library.cuInit(0))
    emit(init=code, name=read_error_name(library, code))
    announce("cuDriverGetVersion")
    version = ctypes.c_int(0)
    if library.cuDriverGetVersion(ctypes.byref(version)) == 0 and version.value:
        emit(cuda=version.value)
    if code == 0:
        announce("cuDeviceGetCount")
        count = ctypes.c_int(0)
        if library.cuDeviceGetCount(ctypes.byref(count)) == 0:
            emit(count=count.value)
    emit(end=True)


def find_loaded_libcuda() -> str:
    """Find the file behind libcuda in this process's own map; "" where there is no such map."""
    try:
        lines = MAPS.read_text(errors="replace").splitlines()
    except OSError:
        return ""
    paths = [line.split(maxsplit=5)[5] for line in lines if "/libcuda.so" in line]
    return paths[0] if paths else ""


def read_error_name(library: ctypes.CDLL, code: int) -> str:
    """Read how libcuda spells a return value, "" where it does not know it (a stub library knows none)."""
    try:
        ask = library.cuGetErrorName
    except AttributeError:
        return ""
    text = ctypes.c_char_p()
    return text.value.decode(errors="replace") if ask(code, ctypes.byref(text)) == 0 and text.value else ""


if __name__ == "__main__":
    main()
