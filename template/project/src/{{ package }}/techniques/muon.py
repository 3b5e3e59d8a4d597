"""Muon, with the matrices of one shape in one batch: `optim.name=muon`."""

import math
from collections import defaultdict
from typing import Any

import torch
from torch import Tensor


class Muon(torch.optim.Muon):
    """Muon (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon/): options and state are those of torch's.

    torch.optim.Muon takes one matrix after the other, which for small matrices is bound by the launches of kernels, and
    computes in bf16 on every device. Here, equal shapes are one batch, and a CPU computes in fp32: rounding to bf16
    turns a difference of 1e-7 in a gradient into one of 1e-3, and is slow on a CPU without instructions for it.
    """

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            by_shape: dict[torch.Size, list[Tensor]] = defaultdict(list)
            for weight in group["params"]:
                if weight.grad is not None:
                    by_shape[weight.shape].append(weight)
            for weights in by_shape.values():
                self._update(weights, group)
        return loss

    def _update(self, weights: list[Tensor], group: dict[str, Any]) -> None:
        """Update weights of one shape, all of which have a gradient."""
        gradients = [weight.grad for weight in weights if weight.grad is not None]
        for weight in weights:
            if not self.state[weight]:
                self.state[weight]["momentum_buffer"] = torch.zeros_like(weight)
        momenta = [self.state[weight]["momentum_buffer"] for weight in weights]
        torch._foreach_lerp_(momenta, gradients, 1 - group["momentum"])
        updates = torch._foreach_lerp(gradients, momenta, group["momentum"]) if group["nesterov"] else momenta
        dtype = torch.float32 if weights[0].device.type == "cpu" else torch.bfloat16
        steps = orthogonalize(torch.stack(updates), group["ns_coefficients"], group["ns_steps"], group["eps"], dtype)
        torch._foreach_mul_(weights, 1 - group["lr"] * group["weight_decay"])
        size = step_size(group["adjust_lr_fn"], *weights[0].shape)
        torch._foreach_add_(weights, steps.to(weights[0].dtype).unbind(), alpha=-group["lr"] * size)


def step_size(rule: str | None, rows: int, columns: int) -> float:
    """Return the factor of the learning rate for a matrix of this shape.

    `match_rms_adamw` makes the root mean square of an update that of AdamW, about 0.2 (Liu et al. 2025,
    arXiv:2502.16982, section 2.2); None or `original` is Jordan's.
    """
    if rule == "match_rms_adamw":
        return 0.2 * math.sqrt(max(rows, columns))
    return math.sqrt(max(1.0, rows / columns))


def orthogonalize(
    matrices: Tensor, coefficients: tuple[float, float, float], steps: int, eps: float, dtype: torch.dtype
) -> Tensor:
    """Return matrices (n, rows, columns) with the same singular vectors and singular values of about 1, 0.7 to 1.2.

    Each of the `steps` of the Newton-Schulz iteration applies a polynomial with these coefficients of x, x^3 and x^5 to
    all singular values. `dtype` is the data type of the iteration and of what is returned.
    """
    a, b, c = coefficients
    tall = matrices.shape[1] > matrices.shape[2]
    x = matrices.mT if tall else matrices  # the smaller of the two products
    norms = torch.linalg.matrix_norm(x, keepdim=True).clamp(min=eps)  # at least the largest singular value
    x = (x / norms).to(dtype)
    for _ in range(steps):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x
