"""One process of an all-reduce that torchrun starts: `all_reduce.py BACKEND MEGABYTES FOLDER`.

Writes one JSON object into a file of FOLDER: `{"wrong": COUNT, "seconds": PER_CALL, "bytes": SIZE}`. It imports nothing
of devkit, so that any Python with torch can run it by its path.
"""

import json
import sys
import time
from pathlib import Path
from statistics import median

import torch
import torch.distributed as processes
from torch.distributed.elastic.multiprocessing.errors import record

WARM_UP_CALLS, CALLS = 3, 10


@record
def main(backend: str, megabytes: int, folder: str) -> None:
    """All-reduce numbers that differ by position and rank, check every sum, then measure the time."""
    processes.init_process_group(backend)
    rank, world_size = processes.get_rank(), processes.get_world_size()
    device = torch.device("cuda", rank) if backend == "nccl" else torch.device("cpu")
    if backend == "nccl":
        torch.cuda.set_device(device)
    # Small integers: their sums are exact in fp32 in any order.
    positions = torch.arange(megabytes * 2**18, device=device, dtype=torch.float32) % 7
    numbers = positions * (rank + 1)
    processes.all_reduce(numbers)
    wrong = int((numbers != positions * (world_size * (world_size + 1) // 2)).sum())
    seconds = [_time_call(numbers, device) for _ in range(WARM_UP_CALLS + CALLS)][WARM_UP_CALLS:]
    found = {"wrong": wrong, "seconds": median(seconds), "bytes": numbers.nbytes}
    Path(folder, f"{rank}.json").write_text(json.dumps(found), encoding="utf-8")
    processes.destroy_process_group()


def _time_call(numbers: torch.Tensor, device: torch.device) -> float:
    processes.barrier()
    _synchronize(device)
    start = time.perf_counter()
    processes.all_reduce(numbers)
    _synchronize(device)
    return time.perf_counter() - start


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
