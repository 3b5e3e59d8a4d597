"""All learning-rate schedules but plain 1cycle: `optim.schedule`."""

import math
from itertools import pairwise

from ..config import OptimConfig


def _onecycle(cfg: OptimConfig, peak: float, last: int, top: float, step: int) -> tuple[float, float]:
    """Return learning rate and momentum of a step of 1cycle, whose peak is at step `top` and whose end is at `last`."""
    first = peak / cfg.div_factor
    top = min(max(top, 1.0), max(last - 1.0, 1.0))
    corners = [(0.0, first, 0.95), (top, peak, 0.85), (last, first / cfg.final_div_factor, 0.95)]
    if cfg.three_phase:
        corners.insert(2, (2 * top, first, 0.95))
    phase = next(phase for phase in pairwise(corners) if step <= phase[1][0])
    (start, rate, momentum), (end, next_rate, next_momentum) = phase
    part = (step - start) / max(end - start, 1.0)
    done = part if cfg.anneal_strategy == "linear" else (1 - math.cos(math.pi * part)) / 2
    momentum += (next_momentum - momentum) * done
    return rate + (next_rate - rate) * done, momentum if cfg.cycle_momentum else cfg.beta1


def schedule(cfg: OptimConfig, peak: float, total_steps: int, step: int) -> tuple[float, float]:
    """Return learning rate and momentum (beta1) of optimizer step `step`, from 0 to total_steps - 1.

    - `onecycle` with `optim.three_phase` or `optim.anneal_strategy=linear`, as `torch.optim.lr_scheduler.OneCycleLR`.
    - `cyclic`, Smith 2015 (arXiv:1506.01186, section 3.1): triangular between peak / div_factor and the peak.
    - `cosine`, Loshchilov and Hutter 2016 (arXiv:1608.03983, equation 5), after a linear warm-up, without restarts.
    - `wsd`: warm-up, stable, decay by 1 - sqrt, Haegele et al. 2024 (arXiv:2405.18392, section 3).
    - `constant`, after a warm-up if `optim.warmup_steps` is given.
    - `range`: exponential from range_low to range_high; the peak is not used.

    Raises:
        UserError: the run is shorter than its warm-up.
    """
    last = max(total_steps - 1, 1)
    if cfg.schedule == "range":
        return cfg.range_low * (cfg.range_high / cfg.range_low) ** (step / last), cfg.beta1
    if cfg.schedule == "onecycle":
        return _onecycle(cfg, peak, last, cfg.pct_start * total_steps - 1, step)
    if cfg.schedule == "cyclic":
        length = cfg.cycle_steps or max(total_steps // 4, 2)
        height = 1 - abs(step % length / (length / 2) - 1)
        momentum = 0.95 - 0.1 * height if cfg.cycle_momentum else cfg.beta1
        return peak * (1 + (cfg.div_factor - 1) * height) / cfg.div_factor, momentum
    share = 0 if cfg.schedule == "constant" else total_steps // 20
    warmup = share if cfg.warmup_steps is None else cfg.warmup_steps
    if warmup and warmup >= total_steps:
        cfg.refuse("warmup_steps", f"the run has only {total_steps} steps; use fewer")
    if step < warmup:
        return peak * (step + 1) / (warmup + 1), cfg.beta1
    height, low = 1.0, 1 / cfg.final_div_factor
    if cfg.schedule == "cosine":
        height = (1 + math.cos(math.pi * (step - warmup) / max(last - warmup, 1))) / 2
    if cfg.schedule == "wsd":
        start = max(last - math.ceil(cfg.decay_fraction * total_steps), warmup)
        height = 1 - math.sqrt(max(step - start, 0) / max(last - start, 1))
    return peak * (low + (1 - low) * height), cfg.beta1
