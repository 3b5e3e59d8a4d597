"""Batches arrive intact, from pinned memory, and before the step that needs them."""

from collections.abc import Callable

import torch
from torch import Tensor

from ..check import ENGINE, Check, Figures, Lab

BATCHES, SIZE = 500, 64
MULTIPLIER = 7919
"""A prime, so that neighbouring samples have different content."""


class Numbered:
    """Samples of known content: sample i is `i * MULTIPLIER + [0, width)`."""

    def __init__(self, width: int) -> None:
        self.row = torch.arange(width)

    def __len__(self) -> int:
        return BATCHES * SIZE

    def __getitems__(self, indices: list[int]) -> tuple[Tensor, ...]:
        return (torch.tensor(indices)[:, None] * MULTIPLIER + self.row,)

    def checksum(self, indices: list[int]) -> int:
        """The sum of a batch."""
        return len(self.row) * MULTIPLIER * sum(indices) + len(indices) * int(self.row.sum())


def batches(lab: Lab, samples: Numbered, count: int) -> tuple[object, list[list[int]]]:
    """Return the project's loader of the first `count` batches, and their indices."""
    project = lab.project(ENGINE)
    order = [list(range(begin, begin + SIZE)) for begin in range(0, count * SIZE, SIZE)]
    world = project.module("distributed").World(0, 1, lab.device)
    return project.module("loaders").Loader(samples, order, project.config().loader, 0, world), order


def compute_for(lab: Lab) -> Callable[[], None]:
    """Return what keeps the device busy, as a step would."""
    factor = torch.ones(64 if lab.dry else 4096, 64 if lab.dry else 4096, device=lab.device) / 4096

    def compute() -> None:
        for _ in range(4):
            factor @ factor

    return compute


def checksums(lab: Lab) -> Figures:
    """Each of 500 batches has its content when it is read, after other work was queued."""
    samples, sums = Numbered(64 if lab.dry else 8192), []
    compute = compute_for(lab)
    loader, order = batches(lab, samples, BATCHES)
    for (batch,) in loader:  # type: ignore[attr-defined]
        compute()
        sums.append(batch.sum())
        del batch
    wrong = [number for number, indices in enumerate(order) if int(sums[number]) != samples.checksum(indices)]
    assert len(sums) == BATCHES
    assert not wrong, f"{len(wrong)} batches had other content, the first is number {wrong[0]}"
    return {"size_mb": BATCHES * SIZE * len(samples.row) * 8 / 1e6}


def overlap(lab: Lab) -> Figures:
    """The copy of batch n + 1 comes from pinned memory, and ends before the step on batch n does."""
    lab.needs_cuda()
    samples, compute = Numbered(8192), compute_for(lab)
    loader, _ = batches(lab, samples, 20)
    compute()
    torch.cuda.synchronize()
    kinds = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=kinds, acc_events=True) as profile:
        for (batch,) in loader:  # type: ignore[attr-defined]
            compute()
            batch.sum()
        torch.cuda.synchronize()
    events = [event for event in profile.events() if event.device_type.name == "CUDA"]
    events.sort(key=lambda event: event.time_range.start)
    copies = [event for event in events if "HtoD" in event.name]
    sums = [event for event in events if "at::native::reduce_kernel" in event.name]
    assert len(copies) == len(sums) == 20, f"{len(copies)} copies and {len(sums)} sums of 20 batches"
    assert all("Pinned" in copy.name for copy in copies), copies[0].name
    streams = [{event.device_resource_id for event in kind} for kind in (copies, sums)]
    assert streams[0].isdisjoint(streams[1]), "copies and computation share a stream"
    late = [n for n in range(2, 19) if copies[n + 1].time_range.end > sums[n].time_range.end]
    assert not late, f"the batch after number {late[0]} was copied only after the step on it"
    return {"copy_us": sum(copy.time_range.elapsed_us() for copy in copies) / 20}


def checks(lab: Lab) -> list[Check]:
    """Return the checks of this module."""
    return [Check("prefetch, checksums", "loading", checksums), Check("prefetch, overlap", "loading", overlap)]
