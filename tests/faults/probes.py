"""Every probe by the field that it fills, as `gather` calls them, on a recorded machine."""

import functools

from devkit.probe.amd import read_amd
from devkit.probe.cdi import read_cdi
from devkit.probe.clients import read_clients
from devkit.probe.compose import read_compose
from devkit.probe.container import read_container
from devkit.probe.deep import read_deep
from devkit.probe.docker import read_engine
from devkit.probe.driver import read_driver
from devkit.probe.hub import read_hub
from devkit.probe.kernel_log import read_kernel_log
from devkit.probe.limits import read_limits
from devkit.probe.nvml import read_nvml
from devkit.probe.project import read_project
from devkit.probe.python import read_python
from devkit.probe.storage import read_storage
from devkit.probe.system import read_system
from devkit.probe.toolkit import read_toolkit
from devkit.probe.wsl import read_wsl

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
    "limits": read_limits,
    "project": lambda host: read_project(host, project=host.project),
    "hub": read_hub,
    "deep": functools.partial(read_deep, deadline_s=60.0),
}
