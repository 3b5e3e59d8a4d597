"""Which rank takes longest for its own part of the steps, while the others wait for it in collectives."""

import time

from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from ..distributed import World


class Stragglers:
    """Measures the time of this rank outside collectives: from the end of a step to the last gradient of the next.

    It is the host's time: on a GPU, which computes later, only what holds up the host is in it, such as loading
    samples. With FSDP, whose forward pass has collectives, it ends when the batch has been fetched.
    """

    def __init__(self, model: nn.Module, world: World) -> None:
        self.world = world
        self.seconds = self.fetched = self.last_gradient = 0.0
        self.began = time.perf_counter()
        first = next((weight for weight in model.parameters() if weight.requires_grad), None)
        if first is not None and not isinstance(first, DTensor):
            first.register_post_accumulate_grad_hook(self._note)  # backward comes to the first weight last

    def _note(self, weight: Tensor) -> None:
        self.last_gradient = time.perf_counter()

    def at(self, phase: str) -> None:
        """Take the time at the beginning of a phase of the run."""
        now = time.perf_counter()
        if phase == "forward and backward":
            self.fetched = now
        elif phase == "fetching a batch":
            self.seconds += max(0.0, self.fetched - self.began, self.last_gradient - self.began)
            self.began = now

    def read(self) -> float:
        """Return the seconds since the last call."""
        seconds, self.seconds = self.seconds, 0.0
        return seconds

    def name_slowest(self, row: dict[str, float]) -> None:
        """Replace the seconds of all ranks, as `rank <n>`, by the slowest, and how much longer than the mean it took.

        A `slowest_rank_share` of 0.5 is half of the mean longer.
        """
        seconds = [row.pop(f"rank {rank}", 0.0) for rank in range(self.world.world_size)]
        longest, mean = max(seconds), sum(seconds) / len(seconds)
        if mean > 0:
            row |= {"slowest_rank": seconds.index(longest), "slowest_rank_share": longest / mean - 1}
