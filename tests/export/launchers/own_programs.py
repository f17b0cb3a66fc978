"""Reads the generated files with the launchers' own code. Run by the environment that has them, and not by devkit's.

`python own_programs.py KIND PATH...` prints one JSON document: what each file means to its launcher.
"""

import json
import os
import sys
from pathlib import Path


def dstack(paths):
    import yaml
    from dstack._internal.core.models.configurations import parse_apply_configuration

    found = {}
    for path in paths:
        read = parse_apply_configuration(yaml.safe_load(Path(path).read_text()))
        found[path] = json.loads(getattr(read, "root", read).model_dump_json())
    return found


def names(_paths):
    from daytona import GpuType
    from gpuhunt._internal.constraints import KNOWN_AMD_GPUS, KNOWN_NVIDIA_GPUS

    known = [*KNOWN_NVIDIA_GPUS, *KNOWN_AMD_GPUS]
    return {"dstack": [[each.name, each.memory] for each in known], "daytona": [each.value for each in GpuType]}


def skypilot(paths):
    # The catalog is a file that SkyPilot downloads. Here it holds the names alone, which were recorded.
    names = (Path(__file__).parent / "skypilot_gpus.txt").read_text().split()
    catalog = Path(os.environ["HOME"], ".sky/catalogs/v8/common/accelerators.csv")
    catalog.parent.mkdir(parents=True)
    catalog.write_text("AcceleratorName,Clouds\n" + "".join(f"{name},\"['AWS', 'Kubernetes']\"\n" for name in names))
    import sky
    import yaml
    from sky.utils import common_utils, schemas

    found = {}
    for path in paths:
        document = yaml.safe_load(Path(path).read_text())
        if "type" in document:
            common_utils.validate_schema(document, schemas.get_volume_schema(), "a volume: ")
            continue
        common_utils.validate_schema(dict(document), schemas.get_task_schema(), "a task: ")
        common_utils.validate_schema(dict(document["resources"]), schemas.get_resources_schema(), "resources: ")
        os.chdir(Path(path).parent)
        task = sky.Task.from_yaml(path)
        some = next(iter(task.resources))
        found[path] = {
            "name": task.name,
            "nodes": task.num_nodes,
            "gpus": sorted({count for each in task.resources for count in (each.accelerators or {}).values()}),
            "image": sorted(set(some.image_id.values())),
            "spot": some.use_spot,
            "env": task.envs,
            "storage": sorted(task.storage_mounts),
        }
    return found


if __name__ == "__main__":
    answer = {"dstack": dstack, "names": names, "skypilot": skypilot}[sys.argv[1]](sys.argv[2:])
    sys.stdout.write("\n" + json.dumps(answer))
