"""A U-Net (Ronneberger et al. 2015, arXiv:1505.04597) with BatchNorm and padding.

This file is yours to edit. Training needs `ModelConfig` and `build`: see contracts.py.
"""

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .config_base import Section, sized, within
from .data import Spec
from .errors import UserError

SIZES: dict[str, dict[str, int]] = {
    "small": {},  # the defaults of ModelConfig, for images of 16 to 64 pixels
    "base": {  # figure 1 of the paper
        "width": 64,
        "depth": 4,
    },
}


@sized(SIZES)
@dataclass(frozen=True)
class ModelConfig(Section):
    """Architecture and regularization."""

    size: Literal["small", "base"] = "small"
    """Size of the network (base: the paper's); the options below override it."""
    width: int = within("[1, inf)", 16)
    """Channels at full resolution; each level doubles them and halves the resolution."""
    depth: int = within("[1, 10]", 2)
    """Number of times the resolution is halved; 2 ** depth must divide `data.size`."""
    dropout: float = within("[0, 1)", 0.0)
    """Dropout probability at the end of the contracting path, as in section 3.1 of the paper."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.width % 8:
            self.refuse("width", "it must be a multiple of 8, as Tensor Cores require")


class DoubleConv(nn.Sequential):
    """Two 3 x 3 convolutions with BatchNorm, before which a bias has no effect, and ReLU."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(
            nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
        )

    def forward(self, x: Tensor) -> Tensor:
        for layer in self:  # torch.compile skips nn.Sequential's own forward
            x = layer(x)
        return x


class UNet(nn.Module):
    """Images (n, channels, size, size) to class logits per pixel (n, classes, size, size)."""

    def __init__(self, cfg: ModelConfig, spec: Spec) -> None:
        super().__init__()
        self.classes = len(spec.classes)
        self.ignored = spec.ignored
        self.depth = cfg.depth
        levels = range(cfg.depth)

        # the contracting path, with the lowest resolution at its end, then the expanding path
        self.blocks = nn.ModuleList()
        channels = spec.channels
        for level in range(cfg.depth + 1):
            width = cfg.width * 2**level
            self.blocks.append(DoubleConv(channels, width))
            channels = width
        for level in reversed(levels):
            width = cfg.width * 2**level
            self.blocks.append(DoubleConv(2 * width, width))

        self.pool = nn.MaxPool2d(2)
        self.drop = nn.Dropout(cfg.dropout)
        self.ups = nn.ModuleList()
        for level in reversed(levels):
            width = cfg.width * 2**level
            up = nn.ConvTranspose2d(
                2 * width,
                width,
                2,
                stride=2,
            )
            self.ups.append(up)
        self.head = nn.Conv2d(
            cfg.width,
            self.classes,
            1,
        )
        self.initialize()

    def initialize(self) -> None:
        """Initialize as in section 3 of the paper, after He et al. 2015 (arXiv:1502.01852)."""
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d | nn.ConvTranspose2d):
                nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")

    def predict(self, images: Tensor) -> Tensor:
        """Return the class logits per pixel of prepared images."""
        blocks = iter(self.blocks)
        x = images
        skips = []
        for _ in range(self.depth):
            x = next(blocks)(x)
            skips.append(x)
            x = self.pool(x)
        x = self.drop(next(blocks)(x))
        for up in self.ups:
            x = torch.cat([skips.pop(), up(x)], dim=1)
            x = next(blocks)(x)
        logits: Tensor = self.head(x)
        return logits

    def forward(
        self,
        images: Tensor,
        masks: Tensor,
    ) -> tuple[Tensor, dict[str, tuple[Tensor, Tensor]]]:
        """Return the mean loss, and each metric's sum over the batch with the number of pixels.

        Ignored pixels do not count. `iou` has an entry per class; its mean is over classes that
        occur or were predicted.
        """
        logits = self.predict(images)
        pixels = logits.permute(0, 2, 3, 1).reshape(-1, self.classes)
        loss = F.cross_entropy(
            pixels,
            masks.flatten(),
            ignore_index=self.ignored,
        )

        table = self.confusion(logits.argmax(1), masks)
        count = table.sum()
        hits = table.diagonal()
        unions = table.sum(0) + table.sum(1) - hits
        return loss, {
            "loss": (loss.detach() * count, count),
            "accuracy": (hits.sum(), count),
            "iou": (hits, unions),
        }

    def confusion(self, predicted: Tensor, masks: Tensor) -> Tensor:
        """Count the pixels per true class (rows) and predicted class (columns).

        Its shapes are static, so that it does not synchronize with the device.
        """
        classes = self.classes
        cells = masks * classes + predicted
        ignored = masks == self.ignored
        cells = cells.masked_fill(ignored, classes**2).flatten()
        counts = torch.zeros(
            classes**2 + 1,
            dtype=torch.int32,
            device=cells.device,
        )
        ones = torch.ones_like(cells, dtype=torch.int32)
        counts = counts.scatter_add(0, cells, ones)
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
            f"data.size is {spec.size}: for model.depth={cfg.depth} it must be a multiple of "
            f"{step}; the nearest is {nearest}"
        )
    return UNet(cfg, spec)
