"""What the data leave out: said when a run starts and when it ends, and kept in the manifest of each checkpoint."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..contracts import Data, problems
from ..distributed import World
from ..hooks import Hook

KEPT, LONGEST = 100, 160
"""Problems in a manifest, and the characters of one that is printed at the start."""
EFFECT = {"train": "others took their place", "val": "they did not count"}


def summary(data: Data) -> dict[str, str]:
    """Return the fact that some of the data were skipped, filled or ignored when they were loaded, if so."""
    found = problems(data)
    if not found:
        return {}
    first = " ".join(str(found[0]).split())
    first = first if len(first) <= LONGEST else f"{first[:LONGEST]}..."
    package = __package__.partition(".")[0]
    more = f"{len(found)} problems, such as " if len(found) > 1 else ""
    return {"data": f"{more}{first} (python -m {package}.tools.show lists problems)"}


class Samples(Hook):
    """Counts the samples that became unreadable, over all ranks, by the flags `unreadable` of a dataset."""

    def __init__(self, data: Data, world: World) -> None:
        self.data, self.world = data, world
        self.flags: dict[str, Tensor] = {}
        for name, split in (("train", data.train), ("val", data.val)):
            found = getattr(split, "unreadable", None)
            if isinstance(found, Tensor) and found.dtype == torch.uint8:
                self.flags[name] = found

    def manifest(self) -> dict[str, Any]:
        found = [str(problem) for problem in problems(self.data)]
        counts = {name: self._count(flags) for name, flags in self.flags.items()}
        return {"skipped": {"problems": len(found), "first": found[:KEPT], "unreadable": counts}}

    def finish(self, folder: Path, is_main: bool) -> None:
        for name, flags in self.flags.items():
            count = self._count(flags)
            if count and is_main:
                print(f"unreadable  {count} of {len(flags)} {name} samples: {EFFECT[name]}", flush=True)

    def _count(self, flags: Tensor) -> int:
        """Share the flags with the other ranks, and return how many samples are unreadable."""
        if self.world.world_size > 1:
            anywhere = self.world.all_reduce(flags.int().to(self.world.device)).cpu()
            flags[anywhere.nonzero().flatten()] = 1  # and no others, which a worker may set meanwhile
        return int(flags.sum())
