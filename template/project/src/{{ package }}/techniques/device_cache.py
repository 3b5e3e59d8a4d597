"""Cache a small dataset on the device: `data.cache=device`."""

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor

from ..contracts import Batch, Dataset, map_tensors, size_of, tensors
from ..distributed import has_streams
from ..errors import UserError
from ..loaders import Loader

CHUNK = 256


class DeviceCache:
    """Batches of a loader's order, gathered from a copy of all its samples on the device.

    Raises:
        UserError: the copy would take more than 90% of the device's free memory; validation samples are unreadable, or
            not tensors; or they are a stream.
    """

    def __init__(self, loader: Loader) -> None:
        self.order, self.device = loader.order, loader.device
        if getattr(loader.samples, "sequential", False):
            raise UserError("data.cache is 'device': a dataset that is iterated over is read in its order; use none")
        self.example = loader.samples.__getitems__([0])
        if size_of(self.example) != 1 or not _only_tensors(self.example):
            raise UserError("data.cache is 'device': it needs batches of tensors with a sample in each row; use none")
        size, free = _bytes(loader.samples), _free(loader.device)
        if size > 0.9 * free:
            raise UserError(
                f"data.cache is 'device': the samples take {size / 1e9:.2f} GB, and {loader.device} has "
                f"{free / 1e9:.2f} GB free; use none"
            )
        count = len(loader.samples)
        chunks = [list(range(begin, min(begin + CHUNK, count))) for begin in range(0, count, CHUNK)]
        self.parts = _read(loader.with_order(chunks), count)

    def __iter__(self) -> Iterator[Batch]:
        asynchronous = has_streams(self.device)
        for indices in self.order:
            chosen = torch.tensor(indices)
            chosen = (chosen.pin_memory() if asynchronous else chosen).to(self.device, non_blocking=asynchronous)
            yield _filled(self.example, [part.index_select(0, chosen) for part in self.parts])


def _filled(example: Batch, parts: Iterable[Tensor]) -> Batch:
    """Return a batch of the structure of another."""
    remaining = iter(parts)
    return map_tensors(lambda _: next(remaining), example)


def _only_tensors(batch: Batch) -> bool:
    parts = batch.values() if isinstance(batch, Mapping) else batch
    if isinstance(batch, Mapping | tuple | list):
        return all(map(_only_tensors, parts))
    return isinstance(batch, Tensor)


def _read(batches: Iterable[Batch], count: int) -> tuple[Tensor, ...]:
    """Copy all batches, in order, into one tensor for each of their tensors."""
    parts: tuple[Tensor, ...] = ()
    done = 0
    for batch in batches:
        read = tensors(batch)
        parts = parts or tuple(part.new_empty((count, *part.shape[1:])) for part in read)
        if [part.shape[1:] for part in parts] != [part.shape[1:] for part in read]:
            raise UserError(
                "data.cache is 'device': batches differ in shape; use none, or pad all samples to one length"
            )
        for whole, part in zip(parts, read, strict=True):
            whole[done : done + len(part)] = part
        done += len(read[0])
    if done < count:
        raise UserError(
            f"data.cache is 'device': {count - done} samples cannot be read, see above; fix them, or use none"
        )
    return parts


def _bytes(samples: Dataset) -> int:
    first: list[Tensor] = tensors(samples.__getitems__([0]))
    return len(samples) * sum(part.nbytes for part in first)


def _free(device: torch.device) -> int:
    if has_streams(device):
        return torch.accelerator.get_memory_info(device)[0]
    try:
        found = re.search(r"MemAvailable: *(\d+) kB", Path("/proc/meminfo").read_text())
    except OSError:
        found = None
    return int(found[1]) * 1024 if found else 2**63  # unknown on other systems
