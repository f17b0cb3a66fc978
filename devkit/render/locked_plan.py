"""The plan that devkit.lock keeps, as it was solved."""

from collections.abc import Mapping
from typing import Any

from devkit.errors import DevkitError
from devkit.render.lock import LOCK_PATH
from devkit.solver.model import Plan, Reason, Vendor


def locked_plan(document: Mapping[str, Any]) -> Plan:
    """The plan of a lock's document, without its warnings. Raises DevkitError when it is none."""
    try:
        return Plan(
            vendor=Vendor(document["vendor"]),
            base_image=str(document["base_image"]),
            python=str(document["python"]),
            torch=str(document["torch"]),
            variant=str(document["variant"]),
            cuda=document["cuda"],
            torch_index=str(document["torch_index"]),
            packages=tuple((str(name), str(version)) for name, version in document["packages"].items()),
            gpu_request=str(document["gpu_request"]),
            architectures=tuple(map(str, document["architectures"])),
            reasons=tuple(Reason(**reason) for reason in document["reasons"]),
            warnings=(),
            data_as_of=str(document["data_as_of"]),
            rocm=document.get("rocm"),
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        raise DevkitError(
            f"{LOCK_PATH} holds no plan", "Write it anew with `devkit init`, in the version that wrote the project."
        ) from None
