"""A variational autoencoder (Kingma and Welling 2013, arXiv:1312.6114) with a likelihood of the very bytes of images.

Yours to change. The rest of the project needs `ModelConfig`, `build`, and a `forward` that returns the loss and sums.
"""

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .config_base import Section, within
from .data import Spec

SIZES: dict[str, dict[str, object]] = {
    "small": {"width": 32, "stages": 2, "latent": 16},  # for pictures of 8 to 32 pixels
    "base": {"width": 64, "stages": 4, "latent": 128},  # for pictures of 64 pixels and more
}
DRAWS = 64
"""Noises from which a held-out image gets its own; see `VAE.forward`."""


@dataclass(frozen=True)
class ModelConfig(Section):
    """The network's size."""

    size: Literal["small", "base"] = "small"
    """The network's size; a value given below goes before it."""
    width: int = within("[0, inf)", 0)
    """Channels at full resolution; each halving of it doubles them. 0: as `size` says."""
    stages: int = within("[0, 8]", 0)
    """Halvings of the resolution in the encoder, and doublings in the decoder. 0: as `size` says."""
    latent: int = within("[0, inf)", 0)
    """Numbers that an image is compressed to. 0: as `size` says."""
    kl_weight: float = within("[0, inf)", 1.0)
    """Training's weight of the latents' cost: 1 for the bound on the likelihood, above it for simpler latents (Higgins
    et al. 2017, beta-VAE)."""

    def __post_init__(self) -> None:
        self.take(SIZES[self.size])
        super().__post_init__()
        for key in ("width", "latent"):
            if getattr(self, key) % 8:
                self.refuse(key, "it must be a multiple of 8, which Tensor Cores need")


def conv(inputs: int, outputs: int, stride: int = 1) -> nn.Conv2d:
    """A 3 x 3 convolution, filled as He et al. 2015 (arXiv:1502.01852, section 2.2) do."""
    made = nn.Conv2d(inputs, outputs, 3, stride, padding=1)
    nn.init.kaiming_normal_(made.weight, nonlinearity="relu")
    nn.init.zeros_(made.get_parameter("bias"))
    return made


class Block(nn.Module):
    """Half or twice the resolution, then two convolutions around which that passes unchanged."""

    def __init__(self, inputs: int, outputs: int, down: bool) -> None:
        super().__init__()
        self.grow = nn.Identity() if down else nn.Upsample(scale_factor=2)
        self.enter = conv(inputs, outputs, stride=2 if down else 1)
        self.norm1, self.norm2 = nn.GroupNorm(8, outputs), nn.GroupNorm(8, outputs)
        self.conv1, self.conv2 = conv(outputs, outputs), conv(outputs, outputs)
        nn.init.zeros_(self.conv2.weight)  # the detour begins as nothing: Goyal et al. 2017, arXiv:1706.02677, 5.1

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(self.grow(x))
        added: Tensor = self.conv2(F.silu(self.norm2(self.conv1(F.silu(self.norm1(x))))))
        return x + added


class VAE(nn.Module):
    """Images (n, channels, size, size) to latents (n, latent) and back to a distribution of each pixel's byte."""

    mean: Tensor
    std: Tensor
    draws: Tensor

    def __init__(self, cfg: ModelConfig, spec: Spec) -> None:
        super().__init__()
        self.stages, self.latent, self.kl_weight = cfg.stages, cfg.latent, cfg.kl_weight
        widths = [cfg.width * 2**stage for stage in range(cfg.stages + 1)]
        self.inner = (widths[-1], spec.size // 2**cfg.stages, spec.size // 2**cfg.stages)
        self.stem = conv(spec.channels, cfg.width)
        encoder = [Block(inputs, outputs, down=True) for inputs, outputs in pairwise(widths)]
        decoder = [Block(outputs, inputs, down=False) for inputs, outputs in pairwise(widths)]
        self.blocks = nn.ModuleList([*encoder, *decoder[::-1]])
        self.to_latent = nn.Linear(math.prod(self.inner), 2 * cfg.latent)
        self.from_latent = nn.Linear(cfg.latent, math.prod(self.inner))
        self.norm = nn.GroupNorm(8, cfg.width)
        self.head = conv(cfg.width, 2 * spec.channels)
        nn.init.zeros_(self.head.weight)  # every pixel begins with the data's mean and standard deviation
        noise = np.random.default_rng(0).standard_normal((DRAWS, cfg.latent))
        self.register_buffer("mean", torch.tensor(spec.mean).view(1, -1, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(spec.std).view(1, -1, 1, 1), persistent=False)
        self.register_buffer("draws", torch.tensor(noise, dtype=torch.float32), persistent=False)

    def encode(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log-variance of the latents of prepared images, each (n, latent)."""
        x = self.stem(images)
        for block in self.blocks[: self.stages]:
            x = block(x)
        mean, log_variance = self.to_latent(F.silu(x).flatten(1)).to(images.dtype).chunk(2, dim=1)
        return mean, log_variance.clamp(-15, 15)

    def _pixels(self, latents: Tensor) -> tuple[Tensor, Tensor]:
        """Location and log-scale of each pixel's logistic distribution, in units of prepared images."""
        x = self.from_latent(latents).unflatten(1, self.inner)
        for block in self.blocks[self.stages :]:
            x = block(x)
        location, log_scale = self.head(F.silu(self.norm(x))).to(latents.dtype).chunk(2, dim=1)
        # A logistic of scale sqrt(3) / pi has standard deviation 1. The lower end is that of Salimans et al.
        return location, (log_scale + math.log(math.sqrt(3) / math.pi)).clamp(min=-7)

    def decode(self, latents: Tensor) -> Tensor:
        """The likeliest images of latents, from 0 to 1."""
        return (self._pixels(latents)[0] * self.std + self.mean).clamp(0, 1)

    def predict(self, images: Tensor) -> Tensor:
        """Reconstructions, from 0 to 1, of prepared images."""
        return self.decode(self.encode(images)[0])

    def sample(self, count: int, generator: torch.Generator) -> Tensor:
        """New images, from 0 to 1."""
        return self.decode(torch.randn(count, self.latent, device=generator.device, generator=generator))

    def forward(self, images: Tensor, labels: Tensor) -> tuple[Tensor, dict[str, tuple[Tensor, int]]]:
        """Return the loss in nats for each pixel and channel, and each metric's sum over the batch; labels are unused.

        `bits_per_dim` is the negative ELBO: no code could spend more bits on these bytes with this model. Noise comes
        from the device's default generator in training. Held out, an image's noise is chosen by its content, so that
        its figure is the same in any batch and on any rank, and is that of a sample all the same.
        """
        mean, log_variance = self.encode(images)
        levels = ((images * self.std + self.mean) * 255).round()
        draw = levels.sum((1, 2, 3)).long() % DRAWS
        noise = torch.randn_like(mean) if self.training else self.draws.index_select(0, draw)
        location, log_scale = self._pixels(mean + (log_variance / 2).exp() * noise)
        half = 0.5 / (255 * self.std)  # of a level's width
        nats = -log_probability(images, levels, location, log_scale, half).flatten(1).sum(1)
        kl = 0.5 * (mean**2 + log_variance.exp() - 1 - log_variance).sum(1)  # to N(0, 1): the paper's appendix B
        count, size = len(images), images[0].numel()
        loss = (nats + self.kl_weight * kl).mean() / size
        parts = {"bits_per_dim": nats + kl, "reconstruction": nats, "kl": kl}
        bits = {name: (part.detach().sum() / (size * math.log(2)), count) for name, part in parts.items()}
        return loss, {"loss": (loss.detach() * count, count), **bits}


def log_probability(x: Tensor, levels: Tensor, location: Tensor, log_scale: Tensor, half: Tensor) -> Tensor:
    """Log-probability of each of the 256 levels under a logistic distribution; all of them together have probability 1.

    Salimans et al. 2017 (arXiv:1701.05517, section 2.1): a level has what lies within half a level of it, and the two
    outer ones all beyond. With s for the sigmoid, s(a) - s(b) = s(a) s(-b) (1 - exp(b - a)) loses no digits.
    """
    scale = log_scale.exp()
    above, below = F.logsigmoid((x + half - location) / scale), F.logsigmoid((location - x + half) / scale)
    inner = above + below + torch.log(-torch.expm1(-2 * half / scale))
    return torch.where(levels < 0.5, above, torch.where(levels > 254.5, below, inner))


def build(cfg: ModelConfig, spec: Spec) -> VAE:
    """Make the network for such data, with fresh weights.

    Raises:
        UserError: the images cannot be halved as often as asked.
    """
    if spec.size % 2**cfg.stages:
        cfg.refuse("stages", f"the images' side of {spec.size} pixels must be a multiple of {2**cfg.stages}")
    return VAE(cfg, spec)
