"""A diffusion model: the U-Net of DDPM (Ho et al. 2020, arXiv:2006.11239, appendix B), trained by flow matching.

The network learns the velocity along straight paths from noise, at time 0, to images, at time 1; new images follow it.
Lipman et al. 2023 (arXiv:2210.02747, section 4.1, optimal transport, with sigma_min = 0); Liu et al. 2023
(arXiv:2209.03003, section 2.1).

This file is yours to edit. The rest of the project uses `ModelConfig` and `build`; see contracts.py.
"""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .config_base import Section, within
from .data import Spec

SIZES: dict[str, dict[str, object]] = {
    "small": {"width": 16, "multipliers": (1, 2), "depth": 1},  # for images of 8 to 16 pixels
    "36M": {"width": 128, "multipliers": (1, 2, 2, 2), "depth": 2, "attention": 16},  # DDPM for 32 pixels
    "114M": {"width": 128, "multipliers": (1, 1, 2, 2, 4, 4), "depth": 2, "attention": 16},  # DDPM for 256 pixels
}
DRAWS = 61
"""Number of fixed pairs of noise and time for validation, see `UNet.fixed_draws`. A prime, as levels may all be near
the multiples of a number, such as 16 for digits."""


@dataclass(frozen=True)
class ModelConfig(Section):
    """Architecture and regularization."""

    size: Literal["small", "36M", "114M"] = "small"
    """Model size: sets the defaults of the fields below, which can be overridden one by one."""
    width: int = within("[0, inf)", 0)
    """Channels at full resolution. 0: set by `size`."""
    multipliers: tuple[int, ...] = ()
    """Channels of each resolution in multiples of `width`; the first is the full one, each further one half of the one
    before. Empty: set by `size`."""
    depth: int = within("[0, 100]", 0)
    """Residual blocks of each resolution in the contracting path; the expanding path has one more. 0: set by `size`."""
    attention: int = within("[0, inf)", 0)
    """Height in pixels of the resolution whose blocks have self-attention, if there is one; between the two paths there
    always is. 0: set by `size`."""
    dropout: float = within("[0, 1)", 0.0)
    """Dropout probability in each block: appendix B of the paper has 0.1 for small images."""

    def __post_init__(self) -> None:
        self.take(SIZES[self.size])
        super().__post_init__()
        if self.width % 8:
            self.refuse("width", "it must be a multiple of 8, as Tensor Cores require")
        if min(self.multipliers) < 1:
            self.refuse("multipliers", "each must be 1 or above")


def norm(channels: int) -> nn.GroupNorm:
    """A GroupNorm of 32 groups, as in the paper, and fewer where these had less than 4 channels."""
    return nn.GroupNorm(math.gcd(32, channels // 4), channels, eps=1e-6)


class Attention(nn.Module):
    """Self-attention between the pixels of (n, channels, height, width), with a residual connection."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = norm(channels)
        self.qkv = nn.Conv2d(channels, 3 * channels, 1)
        self.out = nn.Conv2d(channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm(x)).flatten(2).transpose(1, 2).unsqueeze(1).chunk(3, dim=3)  # one head
        mixed = F.scaled_dot_product_attention(q, k, v).squeeze(1).transpose(1, 2).reshape(x.shape)
        added: Tensor = self.out(mixed)
        return x + added


class Block(nn.Module):
    """Two convolutions with a residual connection, shifted by the embedded time, and self-attention where wanted."""

    def __init__(self, inputs: int, outputs: int, embedding: int, dropout: float, attends: bool) -> None:
        super().__init__()
        self.norm1, self.norm2 = norm(inputs), norm(outputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, padding=1)
        self.shift = nn.Linear(embedding, outputs)
        self.drop = nn.Dropout(dropout)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1)
        self.skip = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()
        self.attention = Attention(outputs) if attends else nn.Identity()

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        """Blocks of images (n, inputs, height, width) and embedded times (n, embedding)."""
        hidden = self.conv1(F.silu(self.norm1(x))) + self.shift(time)[:, :, None, None]
        hidden = self.conv2(self.drop(F.silu(self.norm2(hidden))))
        result: Tensor = self.attention(self.skip(x) + hidden)
        return result


class UNet(nn.Module):
    """Noisy images (n, channels, size, size) and their times (n,) to velocities of the images' shape."""

    mean: Tensor
    std: Tensor
    frequencies: Tensor
    noise: Tensor

    def __init__(self, cfg: ModelConfig, spec: Spec) -> None:
        super().__init__()
        self.shape = (spec.channels, spec.size, spec.size)
        self.depth, self.levels = cfg.depth, len(cfg.multipliers)
        embedding = 4 * cfg.width
        self.embed = nn.Sequential(nn.Linear(cfg.width, embedding), nn.SiLU(), nn.Linear(embedding, embedding))
        self.stem = nn.Conv2d(spec.channels, cfg.width, 3, padding=1)

        def block(inputs: int, outputs: int, attends: bool) -> Block:
            return Block(inputs, outputs, embedding, cfg.dropout, attends)

        widths = [cfg.width * multiplier for multiplier in cfg.multipliers]
        attends = [spec.size // 2**level == cfg.attention for level in range(self.levels)]
        blocks, skips = [], [cfg.width]  # skips: the channels of what the contracting path hands to the expanding one
        for level, width in enumerate(widths):
            for _ in range(cfg.depth):
                blocks.append(block(skips[-1], width, attends[level]))
                skips.append(width)
            skips += [width] * (level + 1 < self.levels)
        current = widths[-1]
        blocks += [block(current, current, True), block(current, current, False)]
        for level in reversed(range(self.levels)):
            for _ in range(cfg.depth + 1):
                blocks.append(block(current + skips.pop(), widths[level], attends[level]))
                current = widths[level]
        self.blocks = nn.ModuleList(blocks)
        """The contracting path, two blocks at the lowest resolution, and the expanding path."""
        self.downs = nn.ModuleList(nn.Conv2d(width, width, 3, stride=2, padding=1) for width in widths[:-1])
        self.ups = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1) for width in widths[:0:-1])
        self.norm = norm(cfg.width)
        self.head = nn.Conv2d(cfg.width, spec.channels, 3, padding=1)
        self._init()
        half = cfg.width // 2
        slower = torch.exp(-math.log(10_000) * torch.arange(half) / half)  # Vaswani et al. 2017, section 3.5
        fixed = np.random.default_rng(0).standard_normal(math.prod(self.shape) + DRAWS - 1)
        self.register_buffer("frequencies", 1000 * slower, persistent=False)  # DDPM has 1,000 times
        self.register_buffer("noise", torch.tensor(fixed, dtype=torch.float32), persistent=False)
        self.register_buffer("mean", torch.tensor(spec.mean).view(1, -1, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(spec.std).view(1, -1, 1, 1), persistent=False)

    def _init(self) -> None:
        """Initialize as the code of the paper, hojonathanho/diffusion: the last layer of each branch with zeros."""
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d | nn.Linear):
                nn.init.xavier_uniform_(layer.weight)
                nn.init.zeros_(layer.get_parameter("bias"))
        for name, weight in self.named_parameters():
            if name.endswith(("conv2.weight", "out.weight", "head.weight")):
                nn.init.zeros_(weight)

    def predict(self, points: Tensor, times: Tensor) -> Tensor:
        """Velocities at points between noise and prepared images, with times from 0 (noise) to 1."""
        angles = times.unsqueeze(1) * self.frequencies
        time = F.silu(self.embed(torch.cat([angles.sin(), angles.cos()], dim=1)))
        x = self.stem(points)
        skips, blocks = [x], iter(self.blocks)
        for level in range(self.levels):
            if level:
                x = self.downs[level - 1](x)
                skips.append(x)
            for _ in range(self.depth):
                x = next(blocks)(x, time)
                skips.append(x)
        x = next(blocks)(x, time)
        x = next(blocks)(x, time)
        for level in range(self.levels):
            if level:
                x = self.ups[level - 1](F.interpolate(x, scale_factor=2.0))
            for _ in range(self.depth + 1):
                x = next(blocks)(torch.cat([x, skips.pop()], dim=1), time)
        velocities: Tensor = self.head(F.silu(self.norm(x)))
        return velocities.to(points.dtype)

    def errors(self, images: Tensor, noise: Tensor, times: Tensor) -> Tensor:
        """Mean squared error of the velocity of each prepared image, (n,), at a point between noise and image."""
        points = torch.lerp(noise, images, times.view(-1, 1, 1, 1))
        return (self.predict(points, times) - (images - noise)).square().flatten(1).mean(1)

    def fixed_draws(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Noise and times for validation, which the levels of an image select: the same in any batch and on any rank.

        The times are the midpoints of equal intervals.
        """
        levels = ((images * self.std + self.mean) * 255).round()
        draw = levels.long().sum((1, 2, 3)) % DRAWS
        noise = self.noise.unfold(0, math.prod(self.shape), 1).index_select(0, draw)
        return noise.view(-1, *self.shape), (draw.to(images.dtype) + 0.5) / DRAWS

    def sample(self, count: int, generator: torch.Generator, steps: int = 16) -> Tensor:
        """Sample new images, with values from 0 to 1, by Heun's method: two velocities per step.

        Karras et al. 2022 (arXiv:2206.00364, section 3) compare it with other methods.
        """
        device = generator.device
        points = torch.randn(count, *self.shape, device=device, generator=generator)
        for number in range(steps):
            now, then = (torch.full((count,), (number + ahead) / steps, device=device) for ahead in (0, 1))
            velocity = self.predict(points, now)
            points = points + (velocity + self.predict(points + velocity / steps, then)) / (2 * steps)
        return self.pixels(points)

    def pixels(self, prepared: Tensor) -> Tensor:
        """Prepared images as pixels from 0 to 1."""
        return (prepared * self.std + self.mean).clamp(0, 1)

    def forward(self, images: Tensor, labels: Tensor) -> tuple[Tensor, dict[str, tuple[Tensor, int]]]:
        """Return the mean loss, and its sum over the batch; labels are unused.

        In training, the device's default generator draws noise and times. In validation, they are fixed.
        """
        if self.training:
            noise, times = torch.randn_like(images), torch.rand(len(images), device=images.device)
        else:
            noise, times = self.fixed_draws(images)
        errors = self.errors(images, noise, times)
        return errors.mean(), {"loss": (errors.detach().sum(), len(images))}


def build(cfg: ModelConfig, spec: Spec) -> UNet:
    """Build the model for this data, with initialized weights.

    Raises:
        UserError: the image size cannot be halved as often as `multipliers` says.
    """
    step = 2 ** (len(cfg.multipliers) - 1)
    if spec.size % step:
        cfg.refuse("multipliers", f"the image size of {spec.size} pixels must be a multiple of {step}")
    return UNet(cfg, spec)
