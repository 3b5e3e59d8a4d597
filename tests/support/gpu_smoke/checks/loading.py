"""Batches arrive intact, from pinned memory, and before the step that needs them."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from ..check import ENGINE, Check, Figures, Lab

BATCHES, SIZE = 500, 64
MULTIPLIER = 7919
"""A prime, so that neighbouring samples have different content."""
sleep: Callable[[int], None] = torch.cuda._sleep
"""Keeps the current stream busy for a number of cycles."""
CYCLES = 8_000_000
"""About 4 ms: the host must take less for a batch, or else no race is possible."""


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


def streams(lab: Lab) -> dict[str, torch.Stream]:
    """Return the streams of the steps and of the project's copies; none on the CPU."""
    if lab.dry:
        return {}
    copies = lab.project(ENGINE).module("loaders")._side_stream(lab.device)
    return {"steps": torch.accelerator.current_stream(lab.device), "copies": copies}


def checksums(lab: Lab, slow: str) -> Figures:
    """Each of 500 batches has its content when it is read, where each step or each copy takes longer than the host.

    Before a slow step reads its batch, no other may get the memory. A step must wait for a slow copy.
    """
    samples, sums = Numbered(64 if lab.dry else 1024), []
    loader, order = batches(lab, samples, BATCHES)
    slowed = streams(lab).get(slow)
    for (batch,) in loader:  # type: ignore[attr-defined]
        if slowed:
            with slowed:
                sleep(CYCLES)
        sums.append(batch.sum())
        del batch
    wrong = [number for number, indices in enumerate(order) if int(sums[number]) != samples.checksum(indices)]
    assert len(sums) == BATCHES
    assert not wrong, f"{len(wrong)} batches had other content, the first is number {wrong[0]}"
    return {"size_mb": BATCHES * SIZE * len(samples.row) * 8 / 1e6}


def overlap(lab: Lab) -> Figures:
    """The copy of batch n + 1 comes from pinned memory, and ends before the step on batch n does."""
    lab.needs_cuda()
    loader, _ = batches(lab, Numbered(8192), 20)
    torch.cuda.synchronize()
    kinds = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=kinds, acc_events=True) as profile:
        for (batch,) in loader:  # type: ignore[attr-defined]
            sleep(CYCLES)
            batch.sum()
        torch.cuda.synchronize()
    events = [event for event in profile.events() if event.device_type.name == "CUDA"]
    events.sort(key=lambda event: event.time_range.start)
    copies = [event for event in events if "HtoD" in event.name]
    sums = [event for event in events if "at::native::reduce_kernel" in event.name]
    assert len(copies) == len(sums) == 20, f"{len(copies)} copies and {len(sums)} sums of 20 batches"
    assert all("Pinned" in copy.name for copy in copies), copies[0].name
    used = [{event.device_resource_id for event in kind} for kind in (copies, sums)]
    assert used[0].isdisjoint(used[1]), "copies and computation share a stream"
    late = [n for n in range(2, 19) if copies[n + 1].time_range.end > sums[n].time_range.end]
    assert not late, f"the batch after number {late[0]} was copied only after the step on it"
    return {"copy_us": sum(copy.time_range.elapsed_us() for copy in copies) / 20}


def checks(lab: Lab) -> list[Check]:
    """Return the checks of the batches' content."""
    return [Check(f"prefetch, slow {slow}", "loading", partial(checksums, slow=slow)) for slow in ("steps", "copies")]


def profiled_checks(lab: Lab) -> list[Check]:
    """Return the check that profiles, which slows down what comes after it."""
    return [Check("prefetch, overlap", "loading", overlap)]
