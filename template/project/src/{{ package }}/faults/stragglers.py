"""Which rank takes longest for its own part of the steps, while the others wait for it in collectives."""

import time
from typing import Any

from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from ..distributed import World


class Stragglers:
    """Measures the time of this rank outside collectives: from the end of a step to the last gradient of the next.

    It is the host's time: on a GPU, which computes later, only what holds up the host is in it, such as loading
    samples. With FSDP, whose forward pass has collectives, it ends when the batch has been fetched.
    """

    def __init__(self, model: nn.Module, world: World, times: Any) -> None:
        """`times` is the `PhaseTimes` of this rank, where communication begins at that gradient."""
        self.world, self.times = world, times
        self.seconds = self.fetched = self.last_gradient = 0.0
        self.began = time.perf_counter()
        weights = [it for it in model.parameters() if it.requires_grad and not isinstance(it, DTensor)]
        self.hooks = {it: it.register_post_accumulate_grad_hook(self._note) for it in weights}
        self.last: Tensor | None = None
        """The weight whose gradient was computed last, in the first step."""

    def _note(self, weight: Tensor) -> None:
        self.last_gradient = time.perf_counter()
        if len(self.hooks) == 1:
            self.times.begin("communication")
        self.last = weight

    def _keep_last(self) -> None:
        """After the first step, note the gradient of the weight only to which backward came last."""
        for weight in [it for it in self.hooks if it is not self.last]:
            self.hooks.pop(weight).remove()

    def at(self, phase: str) -> None:
        """Take the time at the beginning of a phase of the run."""
        now = time.perf_counter()
        if phase == "forward and backward":
            self.fetched = now
        elif phase == "fetching a batch":
            self.seconds += max(0.0, self.fetched - self.began, self.last_gradient - self.began)
            self.began = now
            if self.last is not None and len(self.hooks) > 1:
                self._keep_last()

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
