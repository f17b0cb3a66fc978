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
    from dstack._internal.core.services import is_valid_dstack_resource_name
    from dstack._internal.utils.interpolator import VariablesInterpolator

    interpolate = VariablesInterpolator({"secrets": {"hub": "THE TOKEN"}}).interpolate_or_error
    found = {}
    for path in paths:
        read = parse_apply_configuration(yaml.safe_load(Path(path).read_text()))
        read = getattr(read, "root", read)
        meant = json.loads(read.model_dump_json())
        assert is_valid_dstack_resource_name(read.name), read.name
        if "env" in meant:
            meant["env"] = {
                name: interpolate(value) if isinstance(value, str) else "of the shell"
                for name, value in read.env.items()
            }
        found[path] = meant
    return found


def gpuhunt(_paths):
    from gpuhunt._internal.constraints import KNOWN_AMD_GPUS, KNOWN_NVIDIA_GPUS

    return {
        "nvidia": [[each.name, each.memory] for each in KNOWN_NVIDIA_GPUS],
        "amd": [[e.name] for e in KNOWN_AMD_GPUS],
    }


def daytona(_paths):
    from daytona import GpuType

    return {"gpus": [each.value for each in GpuType]}


def skypilot(paths):
    # The catalog is a file that SkyPilot downloads. Here it holds the names alone, which were recorded.
    names = (Path(__file__).parent / "skypilot_gpus.txt").read_text().split()
    catalog = Path(os.environ["HOME"], ".sky/catalogs/v8/common/accelerators.csv")
    catalog.parent.mkdir(parents=True)
    catalog.write_text("AcceleratorName,Clouds\n" + "".join(f"{name},\"['AWS', 'Kubernetes']\"\n" for name in names))
    import sky
    import yaml
    from sky.utils import accelerator_registry, common_utils, schemas

    found = {}
    for path in paths:
        document = yaml.safe_load(Path(path).read_text())
        if "type" in document:
            common_utils.validate_schema(document, schemas.get_volume_schema(), "a volume: ")
            found[path] = document
            continue
        common_utils.validate_schema(dict(document), schemas.get_task_schema(), "a task: ")
        common_utils.validate_schema(dict(document["resources"]), schemas.get_resources_schema(), "resources: ")
        os.chdir(Path(path).parent)
        task = sky.Task.from_yaml(path)
        some = next(iter(task.resources))
        for each in task.resources:
            for name in each.accelerators or {}:
                assert accelerator_registry.canonicalize_accelerator_name(name, None) == name
        found[path] = {
            "name": task.name,
            "nodes": task.num_nodes,
            "accelerators": sorted(json.dumps(each.accelerators) for each in task.resources),
            "cpus": some.cpus,
            "memory": some.memory,
            "disk": some.disk_size,
            "image": sorted(set(some.image_id.values())),
            "spot": some.use_spot,
            "recovery": some.job_recovery,
            "env": task.envs,
            "secrets": [each.name for each in task._managed_secret_refs],
            "storage": {
                where: [each.name, each.source, each.mode.value] for where, each in task.storage_mounts.items()
            },
            "files": task.file_mounts,
            "volumes": task.volumes,
            "overrides": some.cluster_config_overrides,
            "run": task.run,
        }
    return found


if __name__ == "__main__":
    answer = {"dstack": dstack, "gpuhunt": gpuhunt, "daytona": daytona, "skypilot": skypilot}[sys.argv[1]](sys.argv[2:])
    sys.stdout.write("\n" + json.dumps(answer))
