"""A residual network for images: He et al. 2015 (arXiv:1512.03385).

This file is yours to edit. Training needs `ModelConfig` and `build`: see contracts.py.
"""

from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor, nn
from torch.nn import functional as F

from .config_base import Section, sized, within
from .data import Spec
from .errors import UserError

SIZES: dict[str | int, dict[str, Any]] = {
    "small": {},  # the defaults of ModelConfig, for images of 8 to 64 pixels
    18: {  # table 1 of the paper
        "width": 64,
        "depths": (2, 2, 2, 2),
        "block": "basic",
        "stem": "7x7",
    },
    50: {
        "width": 64,
        "depths": (3, 4, 6, 3),
        "block": "bottleneck",
        "stem": "7x7",
    },
}


@sized(SIZES)
@dataclass(frozen=True)
class ModelConfig(Section):
    """Architecture, regularization and loss."""

    size: Literal["small", 18, 50] = "small"
    """Size of the network, the paper's except small; the options below override it."""
    width: int = within("[1, inf)", 32)
    """Channels of the first stage; each further stage doubles them and halves the resolution."""
    depths: tuple[int, ...] = (1, 1, 1)
    """Number of residual blocks per stage.

    [9, 9, 9] with a width of 16 is the paper's ResNet-56 for CIFAR-10, with projections as
    shortcuts.
    """
    block: Literal["basic", "bottleneck"] = "basic"
    """Convolutions: 3 x 3 and 3 x 3, or 1 x 1, 3 x 3 and 1 x 1 to four times the width."""
    stem: Literal["3x3", "7x7"] = "3x3"
    """First layer; 7x7 also halves the resolution twice, for images of 128 pixels and more."""
    label_smoothing: float = within("[0, 1)", 0.0)
    """Label smoothing in training: Szegedy et al. 2015, arXiv:1512.00567, section 7."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.width % 8:
            self.refuse("width", "it must be a multiple of 8, as Tensor Cores require")
        stages = len(self.depths)
        if not 1 <= stages <= 6 or min(self.depths) < 1:
            self.refuse("depths", "it must be one to six positive numbers")


def conv_norm(
    inputs: int,
    outputs: int,
    kernel: int,
    stride: int = 1,
) -> nn.Sequential:
    """Convolution and BatchNorm; a bias before the norm would have no effect."""
    conv = nn.Conv2d(
        inputs,
        outputs,
        kernel,
        stride,
        padding=kernel // 2,
        bias=False,
    )
    nn.init.kaiming_normal_(
        conv.weight,
        mode="fan_out",
        nonlinearity="relu",
    )
    return nn.Sequential(conv, nn.BatchNorm2d(outputs))


class Block(nn.Module):
    """Residual block: convolutions, and a shortcut, a projection where the shape changes."""

    def __init__(
        self,
        inputs: int,
        width: int,
        stride: int,
        bottleneck: bool,
    ) -> None:
        super().__init__()
        if bottleneck:
            # the 3 x 3 has the stride, as in torchvision and in Goyal et al. 2017, section 5.1
            self.outputs = 4 * width
            layers = [
                conv_norm(inputs, width, 1),
                conv_norm(width, width, 3, stride),
                conv_norm(width, self.outputs, 1),
            ]
        else:
            self.outputs = width
            layers = [conv_norm(inputs, width, 3, stride), conv_norm(width, width, 3)]
        self.layers = nn.ModuleList(layers)
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1 or inputs != self.outputs:
            self.shortcut = conv_norm(inputs, self.outputs, 1, stride)
        # The block starts as the identity: Goyal et al. 2017, arXiv:1706.02677, section 5.1.
        last_norm = layers[-1][1]
        nn.init.zeros_(last_norm.get_parameter("weight"))

    def forward(self, x: Tensor) -> Tensor:
        *layers, last = self.layers
        y = x
        for layer in layers:
            y = F.relu(layer(y))
        return F.relu(last(y) + self.shortcut(x))


class ResNet(nn.Module):
    """Images (n, channels, size, size) to class logits (n, classes)."""

    def __init__(self, cfg: ModelConfig, spec: Spec) -> None:
        super().__init__()
        self.smoothing = cfg.label_smoothing
        self.stride = 2 ** (len(cfg.depths) - 1) * (4 if cfg.stem == "7x7" else 1)
        self.pool: nn.Module
        if cfg.stem == "7x7":
            self.stem = conv_norm(spec.channels, cfg.width, 7, stride=2)
            self.pool = nn.MaxPool2d(3, stride=2, padding=1)
        else:
            self.stem = conv_norm(spec.channels, cfg.width, 3)
            self.pool = nn.Identity()

        self.blocks = nn.ModuleList()
        channels = cfg.width
        for stage, depth in enumerate(cfg.depths):
            width = cfg.width * 2**stage
            for number in range(depth):
                block = Block(
                    channels,
                    width,
                    stride=2 if stage > 0 and number == 0 else 1,
                    bottleneck=cfg.block == "bottleneck",
                )
                self.blocks.append(block)
                channels = block.outputs
        self.head = nn.Linear(channels, len(spec.classes))

    def predict(self, images: Tensor) -> Tensor:
        """Return the class logits of prepared images."""
        x = F.relu(self.stem(images))
        x = self.pool(x)
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(x.mean((2, 3)))
        return logits

    def forward(
        self,
        images: Tensor,
        labels: Tensor,
    ) -> tuple[Tensor, dict[str, tuple[Tensor, int]]]:
        """Return the mean loss, and each metric's sum over the batch with the number of samples."""
        if self.training and len(images) == 1 and images.shape[-1] <= self.stride:
            raise UserError(
                "a batch has 1 image: BatchNorm needs 2 or more, so raise batch_size or data.size"
            )
        logits = self.predict(images)
        loss = F.cross_entropy(
            logits,
            labels,
            label_smoothing=self.smoothing if self.training else 0.0,
        )

        count = len(labels)
        correct = (logits.argmax(1) == labels).sum()
        return loss, {
            "loss": (loss.detach() * count, count),
            "accuracy": (correct, count),
        }


def build(cfg: ModelConfig, spec: Spec) -> ResNet:
    """Build the model for this data, with initialized weights."""
    return ResNet(cfg, spec)
