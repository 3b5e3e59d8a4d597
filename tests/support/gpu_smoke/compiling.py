"""What a run has compiled."""

import torch
from torch._dynamo.utils import counters


class Graphs:
    """A hook: the number of compiled graphs at the start of each step and at the end, and whether any is captured."""

    def __init__(self) -> None:
        self.counts: list[int] = []
        self.captured = False

    def before_step(self, step: int) -> None:
        self.counts.append(counters["stats"]["unique_graphs"])
        if torch.cuda.is_available() and self.counts[-1]:  # the import takes a second
            from torch._inductor.cudagraph_trees import get_manager

            found = get_manager(torch.cuda.current_device(), create_if_none_exists=False)
            self.captured = self.captured or found is not None

    def finish(self, *run: object) -> None:
        self.counts.append(counters["stats"]["unique_graphs"])
