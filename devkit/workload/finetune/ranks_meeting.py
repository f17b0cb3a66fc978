"""How the processes of a run find each other, and for how long they wait."""

import os
import re
import time
from datetime import timedelta
from typing import Any, TypeAlias

import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

from devkit.errors import DevkitError
from devkit.workload.finetune.leaving import ToldByAnother

Store: TypeAlias = Any
"""A torch.distributed.Store, of whose methods torch gives no types."""

MEETING_S = 300.0
"""How long a process waits for the others to come. Their launchers have found each other by then: what is left is the
import of torch, from a slow disk at worst."""

PATIENCE_S = 1800.0
"""How long a process waits for the others after that: the first may be writing a large checkpoint meanwhile."""

LAST_WORD_S = 10.0
"""How long a process that ends waits to learn whether another one tells why, and for the others to learn it."""

POLL_S = 0.05

_PLACE = re.compile(r"^\[[^\]]*:\d+\] ")

_HINT = (
    "Check that all of them were started, with one --rdzv-endpoint, and that the port is open between the machines. "
    "Where a machine has several network cards, name the right one in GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME."
)


def meet(kind: str, rank: int, world: int, *, local: int, meeting_s: float, patience_s: float) -> Store:
    """Wait for all processes and set up what they exchange over; the store that they met at.

    Raises DevkitError, in the first process of each node, when they do not come; in the others ToldByAnother.
    """
    # Both back ends on GPUs: what the processes agree on goes over gloo and does not interrupt the GPU's work.
    backend = "cpu:gloo,cuda:nccl" if kind == "cuda" else "gloo"
    try:
        store: Store = next(rendezvous("env://", timeout=timedelta(seconds=meeting_s)))[0]
        # gloo would wait for those that went before they said where they are reached, as long as for any exchange.
        _await_all(store, rank, world, meeting_s)
        dist.init_process_group(
            backend, store=store, rank=rank, world_size=world, timeout=timedelta(seconds=patience_s)
        )
    except (RuntimeError, ValueError) as error:
        where = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        told = DevkitError if local == 0 else ToldByAnother
        raise told(f"process {rank} of {world} did not find the others at {where}: {in_short(error)}", _HINT) from None
    store.set_timeout(timedelta(seconds=LAST_WORD_S))
    return store


def await_askers(store: Store, key: str, askers: int) -> None:
    """Keep the store there until so many processes have counted themselves under `key`, or for as long as they would.

    Only where the store is in the first process: torchrun's own outlives the processes that it started.
    Source: torch 2.13, torch/distributed/rendezvous.py, _torchelastic_use_agent_store.
    """
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == str(True):
        return
    deadline_s = time.monotonic() + LAST_WORD_S
    while int(store.add(key, 0)) < askers and time.monotonic() < deadline_s:
        time.sleep(POLL_S)


def _await_all(store: Store, rank: int, world: int, meeting_s: float) -> None:
    """Raises RuntimeError that names who did not come."""
    store.set(_here(rank), "1")
    try:
        store.wait([_here(each) for each in range(world)], timedelta(seconds=meeting_s))
    except RuntimeError:
        absent = [f"{each}" for each in range(world) if not store.check([_here(each)])]
        if not absent:
            raise
        raise RuntimeError(f"{', '.join(absent)} did not come within {meeting_s:g} s") from None


def _here(rank: int) -> str:
    return f"devkit/here/{rank}"


def in_short(error: Exception) -> str:
    """The first sentence of what gloo or NCCL say, without the place in their source: what follows never differs."""
    line = str(error).strip().splitlines()[0]
    return _PLACE.sub("", line).partition(". ")[0]
