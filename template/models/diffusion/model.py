"""A diffusion model: the U-Net of DDPM, trained by flow matching.

Ho et al. 2020 (arXiv:2006.11239, appendix B); Lipman et al. 2022 (arXiv:2210.02747). This file is
yours to edit. Training needs `ModelConfig` and `build`: see contracts.py.
"""

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .config_base import Section, sized, within
from .data import Spec

SIZES: dict[str, dict[str, Any]] = {
    "small": {},  # the defaults of ModelConfig, for images of 8 to 16 pixels
    "36M": {  # the paper's, for 32 pixels
        "widths": (128, 256, 256, 256),
        "depth": 2,
    },
    "114M": {  # the paper's, for 256 pixels
        "widths": (128, 128, 256, 256, 512, 512),
        "depth": 2,
    },
}
DRAWS = 61
"""Pairs of noise and time for validation: a prime, as levels may be multiples of a number."""


@sized(SIZES)
@dataclass(frozen=True)
class ModelConfig(Section):
    """Architecture."""

    size: Literal["small", "36M", "114M"] = "small"
    """Size of the network, DDPM's except small; the options below override it."""
    widths: tuple[int, ...] = (16, 32)
    """Channels of each resolution, from the full one by halves."""
    depth: int = within("[1, 1000]", 1)
    """Residual blocks of each resolution in the contracting path; the expanding one has 1 more."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.widths:
            self.refuse("widths", "it must have at least one value")
        for width in self.widths:
            if width < 8 or width % 8:
                self.refuse("widths", "it must be multiples of 8, as Tensor Cores require")


def norm(channels: int) -> nn.GroupNorm:
    """Return a GroupNorm of the paper's 32 groups, or of fewer, with at least 4 channels each."""
    groups = math.gcd(32, channels // 4)
    return nn.GroupNorm(groups, channels, eps=1e-6)


def conv(
    inputs: int,
    outputs: int,
    stride: int = 1,
) -> nn.Conv2d:
    """Return a 3 x 3 convolution."""
    return nn.Conv2d(
        inputs,
        outputs,
        3,
        stride,
        padding=1,
    )


class Block(nn.Module):
    """Residual block: two convolutions, shifted by the embedded time, and, if wanted, attention."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        embedding: int,
        attends: bool,
    ) -> None:
        super().__init__()
        self.norm1 = norm(inputs)
        self.norm2 = norm(outputs)
        self.conv1 = conv(inputs, outputs)
        self.shift = nn.Linear(embedding, outputs)
        self.conv2 = conv(outputs, outputs)
        self.skip: nn.Module = nn.Identity()
        if inputs != outputs:
            self.skip = nn.Conv2d(inputs, outputs, 1)
        self.attention = nn.ModuleDict()
        if attends:
            self.attention["norm"] = norm(outputs)
            self.attention["qkv"] = nn.Conv2d(
                outputs,
                3 * outputs,
                1,
            )
            self.attention["out"] = nn.Conv2d(
                outputs,
                outputs,
                1,
            )

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        shift = self.shift(time)[:, :, None, None]
        hidden = F.silu(self.norm1(x))
        hidden = self.conv1(hidden) + shift
        hidden = F.silu(self.norm2(hidden))
        x = self.skip(x) + self.conv2(hidden)
        if self.attention:
            x = x + self.attend(x)
        return x

    def attend(self, x: Tensor) -> Tensor:
        """Return what one head reads from all pixels for each pixel."""
        normalized = self.attention["norm"](x)
        qkv = self.attention["qkv"](normalized)
        pixels = qkv.flatten(2).transpose(1, 2)
        q, k, v = pixels.unsqueeze(1).chunk(3, dim=3)
        mixed = F.scaled_dot_product_attention(q, k, v)
        mixed = mixed.squeeze(1).transpose(1, 2)
        y: Tensor = self.attention["out"](mixed.reshape(x.shape))
        return y


class UNet(nn.Module):
    """Noisy images (n, channels, size, size) and their times (n,) to velocities of this shape."""

    def __init__(self, cfg: ModelConfig, spec: Spec) -> None:
        super().__init__()
        width = cfg.widths[0]
        self.shape = (spec.channels, spec.size, spec.size)
        self.depth = cfg.depth
        self.embed = nn.Sequential(
            nn.Linear(width, 4 * width),
            nn.SiLU(),
            nn.Linear(4 * width, 4 * width),
        )
        self.stem = conv(spec.channels, width)
        self.blocks = make_blocks(cfg, spec.size)
        self.downs = nn.ModuleList()
        for outputs in cfg.widths[:-1]:
            self.downs.append(conv(outputs, outputs, stride=2))
        self.ups = nn.ModuleList()
        for inputs in cfg.widths[:0:-1]:
            self.ups.append(conv(inputs, inputs))
        self.norm = norm(width)
        self.head = conv(width, spec.channels)
        self.initialize()

        # Vaswani et al. 2017, arXiv:1706.03762, section 3.5; DDPM has 1,000 times
        half = width // 2
        slower = torch.exp(-math.log(10_000) * torch.arange(half) / half)
        self.frequencies = nn.Buffer(1000 * slower, persistent=False)
        values = math.prod(self.shape) + DRAWS - 1
        noise = np.random.default_rng(0).standard_normal(values)
        self.noise = nn.Buffer(
            torch.tensor(noise).float(),
            persistent=False,
        )
        mean = torch.tensor(spec.mean).view(1, -1, 1, 1)
        std = torch.tensor(spec.std).view(1, -1, 1, 1)
        self.mean = nn.Buffer(mean, persistent=False)
        self.std = nn.Buffer(std, persistent=False)

    def initialize(self) -> None:
        """Initialize as the paper's code: the last layer of each branch is zero."""
        last = ("conv2.weight", "out.weight", "head.weight")
        for name, parameter in self.named_parameters():
            if parameter.ndim > 1:
                nn.init.xavier_uniform_(parameter)
            if name.endswith(("bias", *last)):
                nn.init.zeros_(parameter)

    def predict(self, points: Tensor, times: Tensor) -> Tensor:
        """Return velocities at points from noise, at time 0, to prepared images, at time 1."""
        angles = times.unsqueeze(1) * self.frequencies
        waves = torch.cat([angles.sin(), angles.cos()], dim=1)
        time = F.silu(self.embed(waves))

        blocks = iter(self.blocks)
        x = points
        skips = []
        for enter in (self.stem, *self.downs):
            x = enter(x)
            skips.append(x)
            for _ in range(self.depth):
                x = next(blocks)(x, time)
                skips.append(x)
        for _ in range(2):
            x = next(blocks)(x, time)
        for up in (None, *self.ups):
            if up is not None:
                x = up(F.interpolate(x, scale_factor=2.0))
            for _ in range(self.depth + 1):
                x = torch.cat([x, skips.pop()], dim=1)
                x = next(blocks)(x, time)
        velocities: Tensor = self.head(F.silu(self.norm(x)))
        return velocities.to(points.dtype)

    def sample(
        self,
        count: int,
        generator: torch.Generator,
        steps: int = 16,
    ) -> Tensor:
        """Sample new images, with values from 0 to 1, by Heun's method.

        Karras et al. 2022 (arXiv:2206.00364).
        """
        points = torch.randn(
            count,
            *self.shape,
            device=generator.device,
            generator=generator,
        )
        for number in range(steps):
            times = points.new_full((count,), number / steps)
            first = self.predict(points, times)
            second = self.predict(points + first / steps, times + 1 / steps)
            points = points + (first + second) / (2 * steps)
        return (points * self.std + self.mean).clamp(0, 1)

    def draw(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return noise and times; in validation an image selects its own, the same in any batch."""
        count = len(images)
        if self.training:
            noise = torch.randn_like(images)
            return noise, torch.rand(count, device=images.device)
        levels = ((images * self.std + self.mean) * 255).round()
        draws = levels.long().sum((1, 2, 3)) % DRAWS
        windows = self.noise.unfold(
            0,
            images[0].numel(),
            1,
        )
        noise = windows.index_select(0, draws).view_as(images)
        return noise, (draws + 0.5) / DRAWS

    def forward(
        self,
        images: Tensor,
        labels: Tensor,
    ) -> tuple[Tensor, dict[str, tuple[Tensor, int]]]:
        """Return the mean squared error of the velocities, and its sum; labels are unused."""
        noise, times = self.draw(images)
        points = torch.lerp(
            noise,
            images,
            times.view(-1, 1, 1, 1),
        )
        error = self.predict(points, times) - (images - noise)
        losses = error.square().flatten(1).mean(1)
        total = losses.detach().sum()
        return losses.mean(), {"loss": (total, len(images))}


def make_blocks(cfg: ModelConfig, size: int) -> nn.ModuleList:
    """Return the blocks in the order of their use; at 16 pixels they attend, as in the paper."""
    widths = cfg.widths
    embedding = 4 * widths[0]
    blocks = nn.ModuleList()
    # channels of what the contracting path hands to the expanding one: of the stem, of each block,
    # and of each convolution that halves the resolution
    skips = [widths[0]]
    for level, width in enumerate(widths):
        if level > 0:
            skips.append(skips[-1])
        for _ in range(cfg.depth):
            attends = size // 2**level == 16
            block = Block(
                skips[-1],
                width,
                embedding,
                attends,
            )
            blocks.append(block)
            skips.append(width)

    width = widths[-1]
    blocks.append(Block(width, width, embedding, attends=True))
    blocks.append(Block(width, width, embedding, attends=False))

    for level in reversed(range(len(widths))):
        for _ in range(cfg.depth + 1):
            inputs = width + skips.pop()
            width = widths[level]
            attends = size // 2**level == 16
            block = Block(inputs, width, embedding, attends)
            blocks.append(block)
    return blocks


def build(cfg: ModelConfig, spec: Spec) -> UNet:
    """Build the model for this data, with initialized weights.

    Raises:
        UserError: the image size cannot be halved as often as the network does.
    """
    step = 2 ** (len(cfg.widths) - 1)
    if spec.size % step:
        cfg.refuse("widths", f"the image size of {spec.size} pixels must be a multiple of {step}")
    return UNet(cfg, spec)
