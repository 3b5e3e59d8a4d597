"""Model FLOPs utilization: `log.mfu`.

Chowdhery et al. 2022 (arXiv:2204.02311), appendix B: matrix products and convolutions of the model's forward and
backward pass. What activation checkpointing recomputes does not count.
"""

import math
import re
import warnings
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from ..config import Config
from ..contracts import Batch, call, map_tensors, size_of
from ..distributed import World, device_name
from ..hooks import Hook
from ..model import build
from ..speed import Format

# Peak of dense matrix products in bf16 or fp16 with fp32 accumulation, in TFLOP/s, from the vendors' data sheets, by
# the first name that is in the device's name as whole words. A sheet with sparsity has twice as much (H200 NVL: 1,671),
# and AMD's has both dies of an MI250X (383), of which torch sees each as a device.
PEAKS: dict[str, float] = {
    "B200": 2250, "H200 NVL": 835.5, "H200": 989, "H100 PCIe": 756, "H100 NVL": 835.5, "H100": 989, "A100": 312,
    "A40": 149.7, "A30": 165, "A10G": 70, "A10": 125, "L40S": 362, "L40": 181, "L4": 121, "RTX 4090": 165.2,
    "RTX 3090": 71, "V100-PCIE": 112, "V100-SXM2": 125, "Tesla T4": 65, "MI325X": 1307, "MI300X": 1307,
    "MI250X": 191.5,
}  # fmt: skip
UNKNOWN = re.compile(r"Laptop|Max-Q|MIG|GRID|-\d+[ABCQ]\b| (Ti|D|SUPER)\b| / ")
"""In names of other chips, of parts of one (MIG, and virtual GPUs such as A40-48Q), and of several (MI250X / MI250)."""
FACTORS: dict[Format, float] = {"bf16": 1.0, "fp16": 1.0, "tf32": 0.5, "fp8": 2.0}


class Mfu(Hook):
    """FLOPs of one sample, and the peak of all ranks' devices."""

    def __init__(self, model: nn.Module, batch: Batch, world: World, precision: Format) -> None:
        """Count the FLOPs of a `model` and a prepared `batch` on the meta device, where nothing is computed."""
        with FlopCounterMode(display=False) as counter:
            loss, _ = call(model, batch)
            loss.backward()
        self.per_sample: float = counter.get_total_flops() / (size_of(batch) or math.inf)
        """0 where a batch does not say how many samples it has."""
        self.peak = peak(device_name(world.device), precision) * world.world_size

    def on_metrics(self, row: dict[str, float]) -> bool:
        """Add `tflops`, TFLOP per second over all ranks, and `mfu`, their fraction of the peak where that is known."""
        if self.per_sample == 0:
            return False
        row["tflops"] = self.per_sample * row["samples_per_second"] / 1e12
        if self.peak:
            row["mfu"] = row["tflops"] / self.peak
        return False


def hooks(cfg: Config, spec: Any, batch: Batch, world: World, precision: Format) -> list[Hook]:
    """Return what counts; nothing for `auto` if the model needs values, which meta tensors do not have.

    Raises:
        UserError: it needs them, and `log.mfu` is true.
    """
    try:
        with torch.device("meta"):
            model = build(cfg.model, spec)
        return [Mfu(model, map_tensors(lambda part: part.to("meta"), batch), world, precision)]
    except Exception as error:  # whatever your model raises
        reason = f"the model cannot run on meta tensors, which have no values ({type(error).__name__})"
    if cfg.log.mfu is True:
        cfg.log.refuse("mfu", f"{reason}; use false")
    warnings.warn(f"no FLOPs are counted, as {reason}; log.mfu=false omits this", stacklevel=1)
    return []


def peak(device: str, precision: Format) -> float:
    """Return the peak TFLOP/s of a device by its name; 0 where it is not known."""
    if UNKNOWN.search(device):
        return 0
    found = next((tflops for name, tflops in PEAKS.items() if re.search(rf"\b{name}\b", device)), 0)
    return found * FACTORS.get(precision, 0)
