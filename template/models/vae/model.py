"""A variational autoencoder (Kingma and Welling 2013, arXiv:1312.6114) with a discretized logistic likelihood."""

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .config_base import Section, within
from .data import Spec

SIZES = {"small": (32, 2, 16), "base": (64, 4, 128)}
"""Channels at full resolution, which each stage doubles; stages, which halve the resolution; latent dimensions."""
DRAWS = 64  # fixed noise vectors for validation; see `VAE.forward`


@dataclass(frozen=True)
class ModelConfig(Section):
    """Architecture and regularization."""

    size: Literal["small", "base"] = "small"
    """Model size: small is for images of 8 to 32 pixels, base for 64 pixels and more."""
    kl_weight: float = within("[0, inf)", 1.0)
    """Weight of the KL divergence in the loss: 1 for the ELBO, above 1 for disentangled latents (beta-VAE)."""


def conv(inputs: int, outputs: int, stride: int = 1) -> nn.Conv2d:
    """A 3 x 3 convolution, initialized as in He et al. 2015 (arXiv:1502.01852, section 2.2)."""
    made = nn.Conv2d(inputs, outputs, 3, stride, padding=1)
    nn.init.kaiming_normal_(made.weight, nonlinearity="relu")
    nn.init.zeros_(made.get_parameter("bias"))
    return made


class Block(nn.Module):
    """Halves or doubles the resolution, then applies a residual block of two convolutions."""

    def __init__(self, inputs: int, outputs: int, down: bool) -> None:
        super().__init__()
        self.grow = nn.Identity() if down else nn.Upsample(scale_factor=2)
        self.enter = conv(inputs, outputs, stride=2 if down else 1)
        self.norm1, self.norm2 = nn.GroupNorm(8, outputs), nn.GroupNorm(8, outputs)
        self.conv1, self.conv2 = conv(outputs, outputs), conv(outputs, outputs)
        # initialized as the identity: Goyal et al. 2017, arXiv:1706.02677, 5.1
        nn.init.zeros_(self.conv2.weight)

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(self.grow(x))
        added: Tensor = self.conv2(F.silu(self.norm2(self.conv1(F.silu(self.norm1(x))))))
        return x + added


class VAE(nn.Module):
    """Images (n, channels, size, size) to latents (n, latent), and back to a distribution for each pixel."""

    def __init__(self, cfg: ModelConfig, spec: Spec) -> None:
        super().__init__()
        width, self.stages, self.latent = SIZES[cfg.size]
        self.kl_weight = cfg.kl_weight
        widths = [width * 2**stage for stage in range(self.stages + 1)]
        self.inner = (widths[-1], spec.size // 2**self.stages, spec.size // 2**self.stages)
        self.stem = conv(spec.channels, width)
        encoder = [Block(inputs, outputs, down=True) for inputs, outputs in pairwise(widths)]
        decoder = [Block(outputs, inputs, down=False) for inputs, outputs in pairwise(widths)]
        self.blocks = nn.ModuleList([*encoder, *decoder[::-1]])
        self.to_latent = nn.Linear(math.prod(self.inner), 2 * self.latent)
        self.from_latent = nn.Linear(self.latent, math.prod(self.inner))
        self.norm = nn.GroupNorm(8, width)
        self.head = conv(width, 2 * spec.channels)
        # each pixel starts with the mean and standard deviation of the data
        nn.init.zeros_(self.head.weight)
        noise = np.random.default_rng(0).standard_normal((DRAWS, self.latent))
        self.mean = nn.Buffer(torch.tensor(spec.mean).view(1, -1, 1, 1), persistent=False)
        self.std = nn.Buffer(torch.tensor(spec.std).view(1, -1, 1, 1), persistent=False)
        self.draws = nn.Buffer(torch.tensor(noise, dtype=torch.float32), persistent=False)

    def encode(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log-variance of the latents of prepared images, each (n, latent)."""
        x = self.stem(images)
        for block in self.blocks[: self.stages]:
            x = block(x)
        mean, log_variance = self.to_latent(F.silu(x).flatten(1)).to(images.dtype).chunk(2, dim=1)
        return mean, log_variance.clamp(-15, 15)

    def pixels(self, latents: Tensor) -> tuple[Tensor, Tensor]:
        """Location and log-scale of the logistic distribution of each pixel, in units of prepared images."""
        x = self.from_latent(latents).unflatten(1, self.inner)
        for block in self.blocks[self.stages :]:
            x = block(x)
        location, log_scale = self.head(F.silu(self.norm(x))).to(latents.dtype).chunk(2, dim=1)
        # A logistic of scale sqrt(3) / pi has standard deviation 1. The minimum is that of Salimans
        # et al.
        return location, (log_scale + math.log(math.sqrt(3) / math.pi)).clamp(min=-7)

    def decode(self, latents: Tensor) -> Tensor:
        """The most likely images for latents, with values from 0 to 1."""
        return (self.pixels(latents)[0] * self.std + self.mean).clamp(0, 1)

    def predict(self, images: Tensor) -> Tensor:
        """Reconstructions of prepared images, with values from 0 to 1."""
        return self.decode(self.encode(images)[0])

    def sample(self, count: int, generator: torch.Generator) -> Tensor:
        """Sample new images, with values from 0 to 1."""
        return self.decode(
            torch.randn(count, self.latent, device=generator.device, generator=generator)
        )

    def forward(
        self, images: Tensor, labels: Tensor
    ) -> tuple[Tensor, dict[str, tuple[Tensor, int]]]:
        """Return the loss in nats per dimension, and for each metric its sum over the batch; labels are unused.

        `bits_per_dim` is the negative ELBO. In validation, the image selects the noise: the same in
        any batch.
        """
        mean, log_variance = self.encode(images)
        levels = ((images * self.std + self.mean) * 255).round()
        draw = levels.long().sum((1, 2, 3)) % DRAWS  # exact; a sum in fp32 is not, above 2 ** 24
        noise = torch.randn_like(mean) if self.training else self.draws.index_select(0, draw)
        location, log_scale = self.pixels(mean + (log_variance / 2).exp() * noise)
        half = 0.5 / (255 * self.std)  # half the width of a level
        nats = -log_probability(images, levels, location, log_scale, half).flatten(1).sum(1)
        # to N(0, 1): the paper's appendix B
        kl = 0.5 * (mean**2 + log_variance.exp() - 1 - log_variance).sum(1)
        count, size = len(images), images[0].numel()
        loss = (nats + self.kl_weight * kl).mean() / size
        parts = {"bits_per_dim": nats + kl, "reconstruction": nats, "kl": kl}
        bits = {
            name: (part.detach().sum() / (size * math.log(2)), count)
            for name, part in parts.items()
        }
        return loss, {"loss": (loss.detach() * count, count), **bits}


def log_probability(
    x: Tensor, levels: Tensor, location: Tensor, log_scale: Tensor, half: Tensor
) -> Tensor:
    """Log-probability of levels from 0 to 255: Salimans et al.

    2017 (arXiv:1701.05517, section 2.1).

    A level has the logistic mass within half a level of it; s(a) - s(b) = s(a) s(-b) (1 - exp(b -
    a)) for sigmoids.
    """
    scale = log_scale.exp()
    above, below = (
        F.logsigmoid((x + half - location) / scale),
        F.logsigmoid((location - x + half) / scale),
    )
    inner = above + below + torch.log(-torch.expm1(-2 * half / scale))
    return torch.where(levels < 0.5, above, torch.where(levels > 254.5, below, inner))


def build(cfg: ModelConfig, spec: Spec) -> VAE:
    """Build the model for this data, with initialized weights."""
    if spec.size % (step := 2 ** SIZES[cfg.size][1]):
        cfg.refuse("size", f"the image size of {spec.size} pixels must be a multiple of {step}")
    return VAE(cfg, spec)
