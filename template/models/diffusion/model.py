"""A diffusion model: the U-Net of DDPM (arXiv:2006.11239, appendix B), trained by flow matching (arXiv:2210.02747)."""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .config_base import Section
from .data import Spec

SIZES = {
    "small": ((16, 32), 1),
    "36M": ((128, 256, 256, 256), 2),
    "114M": ((128, 128, 256, 256, 512, 512), 2),
}
"""Channels of each resolution, from the full one by halves; and residual blocks of each in the contracting path."""
# fixed pairs of noise and time for validation; a prime, as levels may be multiples of a number
DRAWS = 61


@dataclass(frozen=True)
class ModelConfig(Section):
    """Architecture."""

    size: Literal["small", "36M", "114M"] = "small"
    """Model size: small is for images of 8 to 16 pixels; DDPM has 36M for 32 pixels, and 114M for 256."""


def norm(channels: int) -> nn.GroupNorm:
    """Return a GroupNorm of 32 groups, as in the paper, and fewer where these had less than 4 channels."""
    return nn.GroupNorm(math.gcd(32, channels // 4), channels, eps=1e-6)


class Block(nn.Module):
    """Residual block: two convolutions, shifted by the embedded times (n, embedding), and self-attention if wanted."""

    def __init__(self, inputs: int, outputs: int, embedding: int, attends: bool) -> None:
        super().__init__()
        self.norm1, self.norm2 = norm(inputs), norm(outputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, padding=1)
        self.shift = nn.Linear(embedding, outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1)
        self.skip = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()
        self.attention = nn.ModuleDict()
        if attends:
            self.attention["norm"] = norm(outputs)
            self.attention["qkv"] = nn.Conv2d(outputs, 3 * outputs, 1)
            self.attention["out"] = nn.Conv2d(outputs, outputs, 1)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        hidden = self.conv1(F.silu(self.norm1(x))) + self.shift(time)[:, :, None, None]
        x = self.skip(x) + self.conv2(F.silu(self.norm2(hidden)))
        if self.attention:  # of one head, between all pixels
            q, k, v = (
                self.attention["qkv"](self.attention["norm"](x))
                .flatten(2)
                .transpose(1, 2)[:, None]
                .chunk(3, 3)
            )
            mixed = (
                F.scaled_dot_product_attention(q, k, v).squeeze(1).transpose(1, 2).reshape(x.shape)
            )
            x = x + self.attention["out"](mixed)
        return x


class UNet(nn.Module):
    """Noisy images (n, channels, size, size) and their times (n,) to velocities of the images' shape."""

    def __init__(self, cfg: ModelConfig, spec: Spec) -> None:
        super().__init__()
        self.shape = (spec.channels, spec.size, spec.size)
        widths, self.depth = SIZES[cfg.size]
        embedding = 4 * widths[0]
        self.embed = nn.Sequential(
            nn.Linear(widths[0], embedding), nn.SiLU(), nn.Linear(embedding, embedding)
        )
        self.stem = nn.Conv2d(spec.channels, widths[0], 3, padding=1)
        # in pixels, as in the paper
        attends = [spec.size // 2**level == 16 for level in range(len(widths))]
        # skips: the channels of what the contracting path hands to the expanding one
        blocks, skips = (
            [],
            [],
        )
        for level, width in enumerate(widths):
            # of the stem, or of the convolution that halves the resolution
            skips.append(widths[max(level - 1, 0)])
            for _ in range(self.depth):
                blocks.append(Block(skips[-1], width, embedding, attends[level]))
                skips.append(width)
        blocks += [Block(width, width, embedding, True), Block(width, width, embedding, False)]
        for level in reversed(range(len(widths))):
            for _ in range(self.depth + 1):
                blocks.append(Block(width + skips.pop(), widths[level], embedding, attends[level]))
                width = widths[level]
        self.blocks = nn.ModuleList(blocks)
        self.downs = nn.ModuleList(
            nn.Conv2d(width, width, 3, stride=2, padding=1) for width in widths[:-1]
        )
        self.ups = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1) for width in widths[:0:-1])
        self.norm = norm(widths[0])
        self.head = nn.Conv2d(widths[0], spec.channels, 3, padding=1)
        for (
            name,
            weight,
        ) in self.named_parameters():  # as the paper's code: the last layer of each branch is zero
            if weight.ndim > 1:
                nn.init.xavier_uniform_(weight)
            if name.endswith(("bias", "conv2.weight", "out.weight", "head.weight")):
                nn.init.zeros_(weight)
        # arXiv:1706.03762, 3.5
        slower = torch.exp(-math.log(10_000) * torch.arange(embedding // 8) / (embedding // 8))
        self.frequencies = nn.Buffer(1000 * slower, persistent=False)  # DDPM has 1,000 times
        fixed = np.random.default_rng(0).standard_normal(math.prod(self.shape) + DRAWS - 1)
        self.noise = nn.Buffer(torch.tensor(fixed, dtype=torch.float32), persistent=False)
        self.mean = nn.Buffer(torch.tensor(spec.mean).view(1, -1, 1, 1), persistent=False)
        self.std = nn.Buffer(torch.tensor(spec.std).view(1, -1, 1, 1), persistent=False)

    def predict(self, points: Tensor, times: Tensor) -> Tensor:
        """Velocities at points on straight paths from noise, at time 0, to prepared images, at time 1."""
        angles = times.unsqueeze(1) * self.frequencies
        time = F.silu(self.embed(torch.cat([angles.sin(), angles.cos()], dim=1)))
        skips, blocks = [points], iter(self.blocks)
        for enter in (self.stem, *self.downs):
            skips.append(enter(skips[-1]))
            for _ in range(self.depth):
                skips.append(next(blocks)(skips[-1], time))
        x = next(blocks)(skips[-1], time)
        x = next(blocks)(x, time)
        for up in (None, *self.ups):
            if up is not None:
                x = up(F.interpolate(x, scale_factor=2.0))
            for _ in range(self.depth + 1):
                x = next(blocks)(torch.cat([x, skips.pop()], dim=1), time)
        velocities: Tensor = self.head(F.silu(self.norm(x)))
        return velocities.to(points.dtype)

    def sample(self, count: int, generator: torch.Generator, steps: int = 16) -> Tensor:
        """Sample new images, with values from 0 to 1, by Heun's method: Karras et al.

        2022 (arXiv:2206.00364).
        """
        points = torch.randn(count, *self.shape, device=generator.device, generator=generator)
        for number in range(steps):
            times = points.new_full((count,), number / steps)
            velocity = self.predict(points, times)
            points = points + (
                velocity + self.predict(points + velocity / steps, times + 1 / steps)
            ) / (2 * steps)
        return (points * self.std + self.mean).clamp(0, 1)

    def forward(
        self, images: Tensor, labels: Tensor
    ) -> tuple[Tensor, dict[str, tuple[Tensor, int]]]:
        """Return the mean squared error of the velocities, and its sum over the batch; labels are unused."""
        if self.training:
            noise, times = torch.randn_like(images), torch.rand(len(images), device=images.device)
        else:  # the levels of an image select its noise and time: the same in any batch and on any rank
            draw = ((images * self.std + self.mean) * 255).round().long().sum((1, 2, 3)) % DRAWS
            noise = self.noise.unfold(0, images[0].numel(), 1).index_select(0, draw).view_as(images)
            times = (draw + 0.5) / DRAWS
        points = torch.lerp(noise, images, times.view(-1, 1, 1, 1))
        errors = (self.predict(points, times) - (images - noise)).square().flatten(1).mean(1)
        return errors.mean(), {"loss": (errors.detach().sum(), len(images))}


def build(cfg: ModelConfig, spec: Spec) -> UNet:
    """Build the model for this data, with initialized weights."""
    if spec.size % (step := 2 ** (len(SIZES[cfg.size][0]) - 1)):
        cfg.refuse("size", f"the image size of {spec.size} pixels must be a multiple of {step}")
    return UNet(cfg, spec)
