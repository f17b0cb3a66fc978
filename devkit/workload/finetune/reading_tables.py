"""Records from Parquet and Arrow files, saved data sets and the hub, by the libraries that own these formats.

None of them is required: where one is missing, one line says which. Importable without torch.
"""

import importlib
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

from devkit.errors import DevkitError
from devkit.text import listed, on_one_line
from devkit.workload.finetune.hub_refusals import HubName, refusal
from devkit.workload.finetune.records import Place

SAVED_DATASET = ("dataset_info.json", "state.json")
SAVED_SPLITS = "dataset_dict.json"
"""What `save_to_disk` of the library datasets leaves in a folder.
Source: https://huggingface.co/docs/datasets/process#save"""

SPLIT = "train"

AT_ONCE = 1000
"""Rows that are taken from a Parquet file together."""

BROKEN = (OSError, ValueError, KeyError, TypeError)
"""What these libraries raise for a file that was cut off or damaged; Arrow's own errors are kinds of the first two."""


def is_saved_dataset(folder: Path) -> bool:
    """Whether `folder` was written by `save_to_disk` of the library datasets."""
    return (folder / SAVED_SPLITS).is_file() or all((folder / name).is_file() for name in SAVED_DATASET)


def parquet_rows(path: Path) -> Iterator[tuple[Any, Place]]:
    """The rows of a Parquet file, a few at a time."""
    parquet = _library("pyarrow.parquet", f"{path}")
    batches = _opened(path, lambda: parquet.ParquetFile(path).iter_batches(batch_size=AT_ONCE))
    yield from _numbered((row for batch in batches for row in batch.to_pylist()), f"{path}")


def arrow_rows(path: Path) -> Iterator[tuple[Any, Place]]:
    """The rows of an Arrow file in either of its forms, as a stream or as a file."""
    arrow = _library("pyarrow", f"{path}")
    ipc = _library("pyarrow.ipc", f"{path}")
    with _opened(path, lambda: arrow.memory_map(f"{path}")) as source:
        try:
            reader = ipc.open_stream(source)
            batches = iter(reader)
        except arrow.ArrowInvalid:
            reader = _opened(path, lambda: ipc.open_file(source))
            batches = (reader.get_batch(number) for number in range(reader.num_record_batches))
        yield from _numbered((row for batch in batches for row in batch.to_pylist()), f"{path}")


def saved_rows(folder: Path) -> Iterator[tuple[Any, Place]]:
    """The rows of a folder that `save_to_disk` wrote; of several splits, those of "train"."""
    datasets = _library("datasets", f"{folder}")
    found = _opened(folder, lambda: datasets.load_from_disk(f"{folder}"))
    if isinstance(found, dict):
        if SPLIT not in found:
            raise DevkitError(
                f'{folder} has no split "{SPLIT}"',
                f"Name the folder of one of its splits: {listed((f'{folder / name}' for name in found), 'or')}.",
            )
        found = found[SPLIT]
    yield from _numbered(iter(found), f"{folder}")


def hub_rows(name: str) -> Iterator[tuple[Any, Place]]:
    """The rows of a data set on the hub: owner/name, or owner/name:split; without a split those of "train"."""
    repository, _, split = name.partition(":")
    try:
        datasets = importlib.import_module("datasets")
    except ImportError as error:
        raise DevkitError(
            f"there is no file or folder {name}",
            "If it is a data set on the hub: pip install datasets, which reads it.",
        ) from error
    try:
        found = datasets.load_dataset(repository, split=split or SPLIT)
    except Exception as error:
        refused = _hub_refusal(repository, error)
        if refused is None:
            raise
        raise refused from error
    yield from _numbered(iter(found), name)


def _hub_refusal(repository: str, error: Exception) -> DevkitError | None:
    """What `error` of the library datasets means, by what the hub answers; None for what is neither's fault."""
    from huggingface_hub import errors

    answer = _answer(repository)
    match answer:
        case None if isinstance(error, ValueError):
            return DevkitError(f"{repository}: {on_one_line(str(error))[:200]}", "Name a split as in owner/name:split.")
        case None:
            return None
        case errors.RepositoryNotFoundError() if not isinstance(answer, errors.GatedRepoError):
            return DevkitError(
                f"there is no file or folder {repository}, and no such data set on the hub",
                "Check the path. If the data set is private, log in with `hf auth login` or set HF_TOKEN.",
            )
        case errors.HfHubHTTPError():
            return refusal(HubName(repository, is_data=True), answer, nearest=())
        case _:
            return DevkitError(
                f"there is no file or folder {repository}, and the hub cannot be asked for it",
                "Check the path, or fetch the data set where there is a network and name its files.",
            )


def _answer(repository: str) -> Exception | None:
    """What the hub has against handing out this data set; None for nothing.

    Asked anew: the library datasets drops the answer and keeps a text that says the same of data sets that are gated
    and that are not there. Source: datasets 5.2, load.py, dataset_module_factory (`raise e1 from None`).
    """
    from huggingface_hub import errors, get_hf_file_metadata, hf_hub_url

    try:
        get_hf_file_metadata(hf_hub_url(repository, "README.md", repo_type="dataset"))
    except errors.EntryNotFoundError:
        return None
    except (OSError, RuntimeError, ValueError) as answer:
        return answer
    except Exception as answer:
        # The client of HTTP that the hub's library uses raises kinds of its own where there is no network.
        if "Connect" in type(answer).__name__ or "Timeout" in type(answer).__name__:
            return answer
        raise
    return None


def _library(name: str, wanted_for: str) -> Any:  # noqa: ANN401 - optional, and its types may not be installed
    try:
        return importlib.import_module(name)
    except ImportError as error:
        package = name.partition(".")[0]
        raise DevkitError(
            f"{wanted_for} is read by the package {package}, which is not installed",
            "pip install datasets, which brings all that is needed, or write the records as JSON lines.",
        ) from error


def _opened(path: Path, opening: Any) -> Any:  # noqa: ANN401 - what an optional library hands out
    try:
        return opening()
    except BROKEN as error:
        raise _broken(f"{path}", error) from error


def _broken(source: str, error: Exception) -> DevkitError:
    cause = on_one_line(str(error))[:200] or type(error).__name__
    return DevkitError(f"{source} cannot be read: {cause}", "Check that it was written to its end.")


def _numbered(rows: Iterator[Any], source: str) -> Iterator[tuple[Any, Place]]:
    for number in count():
        try:
            row = next(rows)
        except StopIteration:
            return
        except BROKEN as error:
            raise _broken(source, error) from error
        yield row, Place(source, number, "row")
