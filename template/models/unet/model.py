"""A U-Net (Ronneberger et al. 2015, arXiv:1505.04597) with BatchNorm and padding.

This file is yours to edit.
"""

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .config_base import Section, within
from .data import Spec
from .errors import UserError

SIZES: dict[str, dict[str, object]] = {
    "small": {"width": 16, "depth": 2},  # for images of 16 to 64 pixels
    "base": {"width": 64, "depth": 4},  # figure 1 of the paper
}


@dataclass(frozen=True)
class ModelConfig(Section):
    """Architecture and regularization."""

    size: Literal["small", "base"] = "small"
    """Model size (base: the paper's): sets the defaults of the fields below, which can be overridden one by one."""
    width: int = within("[0, inf)", 0)
    """Channels at full resolution; each level doubles them and halves the resolution.

    0: set by `size`.
    """
    depth: int = within("[0, 10]", 0)
    """Number of times the resolution is halved; 2 ** depth must divide `data.size`.

    0: set by `size`.
    """
    dropout: float = within("[0, 1)", 0.0)
    """Dropout probability at the end of the contracting path, as in section 3.1 of the paper."""

    def __post_init__(self) -> None:
        self.apply_size(SIZES[self.size])
        super().__post_init__()
        if self.width % 8:
            self.refuse("width", "it must be a multiple of 8, as Tensor Cores require")


class DoubleConv(nn.Sequential):
    """Two 3 x 3 convolutions with BatchNorm and ReLU; a bias before the norm would have no effect."""

    def __init__(self, inputs: int, outputs: int) -> None:
        first = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
        second = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        super().__init__(
            first, nn.BatchNorm2d(outputs), nn.ReLU(), second, nn.BatchNorm2d(outputs), nn.ReLU()
        )


class UNet(nn.Module):
    """Images (n, channels, size, size) to class logits per pixel (n, classes, size, size)."""

    def __init__(self, cfg: ModelConfig, spec: Spec) -> None:
        super().__init__()
        self.classes = len(spec.classes)
        self.ignored = spec.ignored
        widths = [cfg.width * 2**level for level in range(cfg.depth + 1)]
        down = [
            DoubleConv(inputs, outputs)
            for inputs, outputs in zip([spec.channels, *widths], widths, strict=False)
        ]
        up = [DoubleConv(2 * width, width) for width in reversed(widths[:-1])]
        self.blocks = nn.ModuleList([*down, *up])
        """The contracting path, including the bottleneck, and then the expanding path."""
        self.depth = cfg.depth
        self.pool = nn.MaxPool2d(2)
        self.drop = nn.Dropout(cfg.dropout)
        self.ups = nn.ModuleList(
            nn.ConvTranspose2d(2 * width, width, 2, stride=2) for width in reversed(widths[:-1])
        )
        self.head = nn.Conv2d(cfg.width, self.classes, 1)
        for layer in self.modules():
            if isinstance(
                layer, nn.Conv2d | nn.ConvTranspose2d
            ):  # section 3 of the paper, after He et al. 2015
                nn.init.kaiming_normal_(layer.weight, mode="fan_in", nonlinearity="relu")

    def predict(self, images: Tensor) -> Tensor:
        """Class logits per pixel of prepared images."""
        skips: list[Tensor] = []
        x = images
        for number, block in enumerate(self.blocks):
            if number > self.depth:
                x = torch.cat([skips.pop(), self.ups[number - self.depth - 1](x)], dim=1)
            x = block(x)
            if number < self.depth:
                skips.append(x)
                x = self.pool(x)
            elif number == self.depth:
                x = self.drop(x)
        logits: Tensor = self.head(x)
        return logits

    def forward(
        self, images: Tensor, masks: Tensor
    ) -> tuple[Tensor, dict[str, tuple[Tensor, Tensor | int]]]:
        """Return the mean loss, and for each metric its sum over the batch and the number of pixels.

        An ignored pixel has no loss but counts in the mean. So other pixels have the same weight in
        every batch, and k micro-batches give the same gradient as one batch that is k times as
        large.
        """
        logits = self.predict(images)
        rows = logits.permute(0, 2, 3, 1).reshape(-1, self.classes)
        total = F.cross_entropy(
            rows, masks.flatten(), ignore_index=self.ignored, reduction="none"
        ).sum()
        with torch.no_grad():
            found = confusion(logits.argmax(1), masks, self.classes, self.ignored)
            hits = found.diagonal()
            unions = found.sum(0) + found.sum(1) - hits
        count = masks.numel()
        return total / count, {
            "loss": (total.detach(), count),
            "accuracy": (hits.sum(), found.sum()),
            "iou": (
                hits,
                unions,
            ),  # one entry per class; the mean is over classes that occur or were predicted
        }


def confusion(predicted: Tensor, masks: Tensor, classes: int, ignore: int) -> Tensor:
    """Pixels per true class (rows) and predicted class (columns), with static shapes and no synchronization."""
    cells = torch.where(masks == ignore, classes**2, masks * classes + predicted).flatten()
    counts = torch.zeros(classes**2 + 1, dtype=torch.int32, device=cells.device)
    counts = counts.scatter_add(0, cells, torch.ones_like(cells, dtype=torch.int32))
    return counts[:-1].view(classes, classes).long()


def build(cfg: ModelConfig, spec: Spec) -> UNet:
    """Build the model for this data, with initialized weights.

    Raises:
        UserError: the image size is not a multiple of 2 ** depth.
    """
    step = 2**cfg.depth
    if spec.size % step:
        nearest = max(round(spec.size / step), 1) * step
        raise UserError(
            f"data.size is {spec.size}: for model.depth={cfg.depth} it must be a multiple of {step}; "
            f"the nearest is {nearest}"
        )
    return UNet(cfg, spec)
