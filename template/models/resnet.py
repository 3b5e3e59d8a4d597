"""A residual network for images (He et al. 2015, arXiv:1512.03385), in the form for small pictures (section 4.2).

Yours to change. The rest of the project needs `ModelConfig`, `build`, and a `forward` that returns the loss and sums.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .data import Spec
from .ranges import Section, within


@dataclass(frozen=True)
class ModelConfig(Section):
    """The network's size, and its loss."""

    width: int = within("[8, inf)", 32)
    """Channels of the first stage; each further stage has twice as many, at half the resolution."""
    stages: int = within("[1, 6]", 3)
    """Number of stages."""
    depth: int = within("[1, 1000]", 1)
    """Residual blocks in a stage: 3 stages of 9 are the paper's ResNet-56."""
    label_smoothing: float = within("[0, 1)", 0.0)
    """Share of each label that training spreads over all classes: Szegedy et al. 2015, arXiv:1512.00567, section 7."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.width % 8:
            self.refuse("width", "it must be a multiple of 8, which Tensor Cores need")


def conv_norm(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Sequential:
    """Convolution and BatchNorm; no bias before the norm, whose own shift would cancel it."""
    conv = nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)
    nn.init.kaiming_normal_(conv.weight, mode="fan_out", nonlinearity="relu")
    return nn.Sequential(conv, nn.BatchNorm2d(outputs))


class Block(nn.Module):
    """Two convolutions around which the input passes unchanged, or projected where the shape changes."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = conv_norm(inputs, outputs, 3, stride)
        self.second = conv_norm(outputs, outputs, 3)
        same = inputs == outputs and stride == 1
        self.shortcut = nn.Identity() if same else conv_norm(inputs, outputs, 1, stride)
        norm = self.second[1]
        # The block starts as the identity: Goyal et al. 2017, arXiv:1706.02677, section 5.1.
        nn.init.zeros_(norm.get_parameter("weight"))

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.second(F.relu(self.first(x))) + self.shortcut(x))


class ResNet(nn.Module):
    """Images (n, channels, size, size) to class scores (n, classes)."""

    def __init__(self, cfg: ModelConfig, spec: Spec) -> None:
        super().__init__()
        self.smoothing = cfg.label_smoothing
        self.stem = conv_norm(spec.channels, cfg.width, 3)
        self.blocks = nn.ModuleList()
        inputs = cfg.width
        for stage, width in enumerate(cfg.width * 2**stage for stage in range(cfg.stages)):
            for position in range(cfg.depth):
                stride = 2 if stage > 0 and position == 0 else 1
                self.blocks.append(Block(inputs, width, stride))
                inputs = width
        self.head = nn.Linear(inputs, len(spec.classes))

    def predict(self, images: Tensor) -> Tensor:
        """Class scores, before softmax, of prepared images."""
        x = F.relu(self.stem(images))
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
