"""A residual network for images (He et al.

2015, arXiv:1512.03385): ResNet-18, ResNet-50, and one for small images.

This file is yours to edit. train.py uses `ModelConfig` and `build`.
"""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn
from torch.nn import functional as F

from .config_base import Section, within
from .data import Spec

SIZES: dict[str | int, dict[str, object]] = {
    "small": {
        "width": 32,
        "depths": (1, 1, 1),
        "block": "basic",
        "stem": "3x3",
    },  # for images of 8 to 64 pixels
    18: {
        "width": 64,
        "depths": (2, 2, 2, 2),
        "block": "basic",
        "stem": "7x7",
    },  # table 1 of the paper
    50: {"width": 64, "depths": (3, 4, 6, 3), "block": "bottleneck", "stem": "7x7"},
}


@dataclass(frozen=True)
class ModelConfig(Section):
    """Architecture, regularization and loss."""

    size: Literal["small", 18, 50] = "small"
    """Model size: sets the defaults of the fields below, which can be overridden one by one."""
    width: int = within("[0, inf)", 0)
    """Channels of the first stage; each further stage doubles them and halves the resolution.

    0: set by `size`.
    """
    depths: tuple[int, ...] = ()
    """Number of residual blocks per stage; [9, 9, 9] with a width of 16 is the paper's ResNet-56 for
    CIFAR-10, with projections as shortcuts. Empty: set by `size`."""
    block: Literal["auto", "basic", "bottleneck"] = "auto"
    """basic: two 3 x 3 convolutions; bottleneck: 1 x 1, 3 x 3, and 1 x 1 to four times the width.

    auto: set by
    `size`."""
    stem: Literal["auto", "3x3", "7x7"] = "auto"
    """First layer; 7x7 also halves the resolution twice, for images of 128 pixels and more.

    auto: set by `size`.
    """
    label_smoothing: float = within("[0, 1)", 0.0)
    """Label smoothing in training: Szegedy et al. 2015, arXiv:1512.00567, section 7."""

    def __post_init__(self) -> None:
        self.apply_size(SIZES[self.size])
        super().__post_init__()
        if self.width % 8 or not self.width:
            self.refuse("width", "it must be a multiple of 8, as Tensor Cores require")
        if not 1 <= len(self.depths) <= 6 or min(self.depths) < 1:
            self.refuse("depths", "it must be one to six positive numbers")


def conv_norm(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Sequential:
    """Convolution and BatchNorm; a bias before the norm would have no effect."""
    conv = nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)
    nn.init.kaiming_normal_(conv.weight, mode="fan_out", nonlinearity="relu")
    return nn.Sequential(conv, nn.BatchNorm2d(outputs))


class Block(nn.Module):
    """Residual block: convolutions, and a shortcut, which is a projection where the shape changes."""

    def __init__(self, inputs: int, width: int, stride: int, bottleneck: bool) -> None:
        super().__init__()
        outputs = 4 * width if bottleneck else width
        if (
            bottleneck
        ):  # the 3 x 3 has the stride, as in torchvision and in Goyal et al. 2017, section 5.1
            layers = [
                conv_norm(inputs, width, 1),
                conv_norm(width, width, 3, stride),
                conv_norm(width, outputs, 1),
            ]
        else:
            layers = [conv_norm(inputs, width, 3, stride), conv_norm(width, outputs, 3)]
        self.layers = nn.ModuleList(layers)
        same = inputs == outputs and stride == 1
        self.shortcut = nn.Identity() if same else conv_norm(inputs, outputs, 1, stride)
        # The block is initialized as the identity: Goyal et al. 2017, arXiv:1706.02677, section
        # 5.1.
        nn.init.zeros_(layers[-1][1].get_parameter("weight"))

    def forward(self, x: Tensor) -> Tensor:
        y = x
        for number, layer in enumerate(self.layers, start=1):
            y = layer(y) if number == len(self.layers) else F.relu(layer(y))
        return F.relu(y + self.shortcut(x))


class ResNet(nn.Module):
    """Images (n, channels, size, size) to class logits (n, classes)."""

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
                self.blocks.append(
                    Block(inputs, width, 2 if stage > 0 and position == 0 else 1, bottleneck)
                )
                inputs = 4 * width if bottleneck else width
        self.head = nn.Linear(inputs, len(spec.classes))

    def predict(self, images: Tensor) -> Tensor:
        """Class logits of prepared images."""
        x = self.pool(F.relu(self.stem(images)))
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(x.mean((2, 3)))
        return logits

    def forward(
        self, images: Tensor, labels: Tensor
    ) -> tuple[Tensor, dict[str, tuple[Tensor, int]]]:
        """Return the mean loss, and for each metric its sum over the batch and the number of samples."""
        logits = self.predict(images)
        loss = F.cross_entropy(
            logits, labels, label_smoothing=self.smoothing if self.training else 0.0
        )
        correct = (logits.detach().argmax(1) == labels).sum()
        count = len(labels)
        return loss, {"loss": (loss.detach() * count, count), "accuracy": (correct, count)}


def build(cfg: ModelConfig, spec: Spec) -> ResNet:
    """Build the model for this data, with initialized weights."""
    return ResNet(cfg, spec)
