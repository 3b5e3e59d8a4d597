"""The loss of a micro-batch, and its weight in the gradient of a step.

That gradient is the one of the mean over everything that counts in the micro-batches of all ranks:
the sum of their losses divided by the sum of their counts.
"""

from collections.abc import Callable, Iterable
from typing import Any
from zlib import crc32

import torch
from torch import Tensor, nn

from .contracts import Metrics
from .errors import UserError

Count = Tensor | float


def compute_loss(net: nn.Module, batch: Any) -> tuple[Tensor, Metrics]:
    """Call the model with a prepared batch: by name for a dict, by position for a tuple.

    A mean over nothing, which is NaN, becomes 0.
    """
    if isinstance(batch, dict):
        loss, metrics = net(**batch)
    else:
        loss, metrics = net(*batch)
    if "loss" not in metrics:
        missing = 'the metrics of `forward` in model.py have no "loss"'
        raise UserError(f"{missing}: add its sum over the batch and the count")
    _, count = metrics["loss"]
    for what, value in {"loss": loss, 'count of "loss"': count}.items():
        if isinstance(value, Tensor) and value.numel() != 1:
            shape = f"of `forward` in model.py has the shape {tuple(value.shape)}"
            raise UserError(f"the {what} {shape}: return one number")
    if torch.is_grad_enabled() and not loss.requires_grad:
        none = "the loss of `forward` in model.py has no gradient"
        raise UserError(f"{none}: make it from the outputs, such as outputs.sum() * 0 for nothing")
    sums = {}
    for name, (total, number) in metrics.items():
        sums[name] = (_or_zero(total, number), number)
    return _or_zero(loss, count), sums


class StepMean:
    """Weighs the micro-batches of a step by their counts.

    The gradient of a step is sum(count * gradient of the loss) / sum(count), over micro-batches and
    ranks. `backward` gets loss * count / divisor / accumulation steps, with a divisor that is known
    at the first micro-batch, so that nothing overflows in fp16. `scale` then multiplies the
    gradients by accumulation steps * divisor / sum(count), which is 1 for equal counts: these cost
    nothing on one rank. Counts on the device stay there.
    """

    def __init__(self, mean_over_ranks: Callable[[Count], Count]) -> None:
        self.mean_over_ranks = mean_over_ranks

    def weight(self, metrics: Metrics, is_first: bool) -> Count:
        """Return the weight of a micro-batch's loss: its count, divided by that of the first one.

        The divisor is the mean over the ranks, so that the gradients which these average have the
        same one. On one rank, it is the first count that is not 0: a sum of large counts, divided
        by 1, would overflow in fp16.
        """
        count: Count = metrics["loss"][1]
        if isinstance(count, Tensor):
            count = _exact(count.detach().squeeze())
        if is_first:
            self.micro_batches = 0
            self.total: Count = 0
            mean = self.mean_over_ranks(count)
            self.has_ranks = mean is not count
            self.divisor = _or_one(mean)
        elif not self.has_ranks:
            self.divisor = _divisor(self.total, self.divisor, count)
        self.micro_batches += 1
        self.total = self.total + count
        return count / self.divisor

    def scale(self, parameters: Iterable[nn.Parameter], accumulation_steps: int) -> None:
        """Divide the gradients by all that counts, not by `accumulation_steps` divisors."""
        if self.micro_batches == accumulation_steps == 1:
            return  # the divisor was all that counts
        total = _or_one(self.mean_over_ranks(self.total))
        factor = accumulation_steps * self.divisor / total
        if not isinstance(factor, Tensor) and factor == 1:
            return
        gradients = [weight.grad for weight in parameters if weight.grad is not None]
        if gradients:  # DeepSpeed keeps its own
            torch._foreach_mul_(gradients, factor)


def check_names(names: list[str], mean_over_ranks: Callable[[Count], Count]) -> None:
    """Refuse ranks whose batches had other metrics: they would wait for each other."""
    number = crc32(repr(names).encode()) % 2**10  # its sum over 16,384 ranks is exact in fp32
    mean = float(mean_over_ranks(float(number)))
    if abs(mean - number) > 0.01:
        own = f"the metrics of this rank are {', '.join(names)}, and other ranks have others"
        raise UserError(f"{own}: let `forward` in model.py return the same names for each batch")


def _exact(count: Tensor) -> Tensor:
    """Return a count whose sums are exact, as those of 16 bits are not."""
    has_16_bits = count.dtype in (torch.bfloat16, torch.float16)
    return count.float() if has_16_bits else count


def _or_zero(value: Any, count: Count) -> Any:
    """Return a value, but 0 for NaN where nothing counts."""
    if isinstance(count, Tensor):
        if not isinstance(value, Tensor):
            value = torch.full((), value, device=count.device)
        is_none = (count == 0).to(value.device, non_blocking=True)
        return torch.where(is_none, torch.nan_to_num(value), value)
    if count:
        return value
    return torch.nan_to_num(torch.as_tensor(value))


def _divisor(total: Count, divisor: Count, count: Count) -> Count:
    """Return the divisor, which is that of the next count while the total is 0."""
    if isinstance(total, Tensor):
        return torch.where(total == 0, _or_one(count), divisor)
    return divisor if total else _or_one(count)


def _or_one(count: Count) -> Count:
    """Return a count to divide by."""
    if isinstance(count, Tensor):
        return torch.where(count == 0, 1, count)
    return count or 1
