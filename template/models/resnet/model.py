"""A residual network for images (He et al. 2015, arXiv:1512.03385): ResNet-18, ResNet-50, and one for small pictures.

Yours to change. The rest of the project needs `ModelConfig`, `build`, and a `forward` that returns the loss and sums.
"""

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .config_base import Section, within
from .data import Spec

SIZES: dict[str | int, dict[str, object]] = {
    "small": {"width": 32, "depths": (1, 1, 1), "block": "basic", "stem": "3x3"},  # for pictures of 8 to 64 pixels
    18: {"width": 64, "depths": (2, 2, 2, 2), "block": "basic", "stem": "7x7"},  # table 1 of the paper
    50: {"width": 64, "depths": (3, 4, 6, 3), "block": "bottleneck", "stem": "7x7"},
}


@dataclass(frozen=True)
class ModelConfig(Section):
    """The network's size, and its loss."""

    size: Literal["small", 18, 50] = "small"
    """The network's size; a value given below goes before it."""
    width: int = within("[0, inf)", 0)
    """Channels of the first stage; each further stage has twice as many, at half the resolution. 0: as `size` says."""
    depths: tuple[int, ...] = ()
    """Residual blocks of each stage; [9, 9, 9] is the paper's ResNet-56. Empty: as `size` says."""
    block: Literal["auto", "basic", "bottleneck"] = "auto"
    """basic: two 3 x 3 convolutions; bottleneck: 1 x 1, 3 x 3, and 1 x 1 to four times the width. auto: as `size`
    says."""
    stem: Literal["auto", "3x3", "7x7"] = "auto"
    """First layer; 7x7 also halves the resolution twice, for pictures of 128 pixels and more. auto: as `size` says."""
    label_smoothing: float = within("[0, 1)", 0.0)
    """Share of each label that training spreads over all classes: Szegedy et al. 2015, arXiv:1512.00567, section 7."""

    def __post_init__(self) -> None:
        self.take(SIZES[self.size])
        super().__post_init__()
        if self.width % 8 or not self.width:
            self.refuse("width", "it must be a multiple of 8, which Tensor Cores need")
        if not 1 <= len(self.depths) <= 6 or min(self.depths) < 1:
            self.refuse("depths", "it must be one to six numbers above 0")


def conv_norm(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Sequential:
    """Convolution and BatchNorm; no bias before the norm, whose own shift would cancel it."""
    conv = nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)
    nn.init.kaiming_normal_(conv.weight, mode="fan_out", nonlinearity="relu")
    return nn.Sequential(conv, nn.BatchNorm2d(outputs))


class Block(nn.Module):
    """Convolutions around which the input passes unchanged, or projected where the shape changes."""

    def __init__(self, inputs: int, width: int, stride: int, bottleneck: bool) -> None:
        super().__init__()
        outputs = 4 * width if bottleneck else width
        if bottleneck:  # the stride is in the 3 x 3, as in torchvision and in Goyal et al. 2017, section 5.1
            layers = [conv_norm(inputs, width, 1), conv_norm(width, width, 3, stride), conv_norm(width, outputs, 1)]
        else:
            layers = [conv_norm(inputs, width, 3, stride), conv_norm(width, outputs, 3)]
        self.layers = nn.ModuleList(layers)
        same = inputs == outputs and stride == 1
        self.shortcut = nn.Identity() if same else conv_norm(inputs, outputs, 1, stride)
        # The block starts as the identity: Goyal et al. 2017, arXiv:1706.02677, section 5.1.
        nn.init.zeros_(layers[-1][1].get_parameter("weight"))

    def forward(self, x: Tensor) -> Tensor:
        y = x
        for number, layer in enumerate(self.layers, start=1):
            y = layer(y) if number == len(self.layers) else F.relu(layer(y))
        return F.relu(y + self.shortcut(x))


class ResNet(nn.Module):
    """Images (n, channels, size, size) to class scores (n, classes)."""

    def __init__(self, cfg: ModelConfig, spec: Spec) -> None:
        super().__init__()
        self.smoothing = cfg.label_smoothing
        large, bottleneck = cfg.stem == "7x7", cfg.block == "bottleneck"
        self.stem = conv_norm(spec.channels, cfg.width, 7 if large else 3, 2 if large else 1)
        self.pool = nn.MaxPool2d(3, 2, padding=1) if large else nn.Identity()
        self.blocks = nn.ModuleList()
        inputs = cfg.width
        for stage, depth in enumerate(cfg.depths):
            width = cfg.width * 2**stage
            for position in range(depth):
                self.blocks.append(Block(inputs, width, 2 if stage > 0 and position == 0 else 1, bottleneck))
                inputs = 4 * width if bottleneck else width
        self.head = nn.Linear(inputs, len(spec.classes))

    def predict(self, images: Tensor) -> Tensor:
        """Class scores, before softmax, of prepared images."""
        x = self.pool(F.relu(self.stem(images)))
        for block in self.blocks:
            x = block(x)
        scores: Tensor = self.head(x.mean((2, 3)))
        return scores

    def forward(self, images: Tensor, labels: Tensor) -> tuple[Tensor, dict[str, tuple[Tensor, int]]]:
        """Return the mean loss, and for each metric its sum over the batch and the number of samples."""
        scores = self.predict(images)
        loss = F.cross_entropy(scores, labels, label_smoothing=self.smoothing if self.training else 0.0)
        with torch.no_grad():
            correct = (scores.argmax(1) == labels).sum()
        count = len(labels)
        return loss, {"loss": (loss.detach() * count, count), "accuracy": (correct, count)}


def build(cfg: ModelConfig, spec: Spec) -> ResNet:
    """Make the network for such data, with fresh weights."""
    return ResNet(cfg, spec)
