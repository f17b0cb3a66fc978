"""Every probe by the field that it fills, as `gather` calls them, on a recorded machine."""

import functools

from devkit.probe.deep import read_deep
from devkit.probe.engine.cdi import read_cdi
from devkit.probe.engine.client import read_clients, read_compose
from devkit.probe.engine.compose_config import read_compose_config
from devkit.probe.engine.daemon import read_engine
from devkit.probe.engine.program_trials import read_program_failures
from devkit.probe.engine.toolkit import read_toolkit
from devkit.probe.gpu.amd import read_amd
from devkit.probe.gpu.driver import read_driver
from devkit.probe.gpu.kernel_log import read_kernel_log
from devkit.probe.gpu.nvml import read_nvml
from devkit.probe.hub import read_hub
from devkit.probe.machine.environment import read_container, read_wsl
from devkit.probe.machine.operating_system import read_system
from devkit.probe.machine.python import read_python
from devkit.probe.machine.resources import read_limits, read_storage
from devkit.probe.project.reader import read_project

PROBES = {
    "system": read_system,
    "driver": read_driver,
    "amd": read_amd,
    "nvml": functools.partial(read_nvml, deadline_s=4.5),
    "engine": functools.partial(read_engine, deadline_s=4.5),
    "compose": read_compose,
    "toolkit": read_toolkit,
    "cdi": read_cdi,
    "wsl": read_wsl,
    "container": read_container,
    "python": read_python,
    "storage": lambda host: read_storage(host, project=host.project),
    "kernel_log": read_kernel_log,
    "clients": read_clients,
    "programs": read_program_failures,
    "limits": read_limits,
    "project": lambda host: read_project(host, project=host.project),
    "compose_config": lambda host: read_compose_config(host, project=host.project),
    "hub": read_hub,
    "deep": functools.partial(read_deep, deadline_s=60.0),
}
