"""A variational autoencoder: Kingma and Welling 2013 (arXiv:1312.6114).

The likelihood is a discretized logistic distribution. This file is yours to edit. Training needs
`ModelConfig` and `build`: see contracts.py.
"""

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .config_base import Section, sized, within
from .data import Spec

SIZES: dict[str, dict[str, int]] = {
    "small": {},  # the defaults of ModelConfig, for images of 8 to 32 pixels
    "base": {  # for 64 pixels and more
        "width": 64,
        "stages": 4,
        "latent": 128,
    },
}
DRAWS = 64
"""Noise vectors for validation; see `VAE.noise`."""


@sized(SIZES)
@dataclass(frozen=True)
class ModelConfig(Section):
    """Architecture and loss."""

    size: Literal["small", "base"] = "small"
    """Size of the network; the options below override it."""
    width: int = within("[8, inf)", 32)
    """Channels at full resolution, which each stage doubles."""
    stages: int = within("[1, 10]", 2)
    """Number of times the resolution is halved; 2 ** stages must divide `data.size`."""
    latent: int = within("[1, inf)", 16)
    """Dimensions of the latents."""
    kl_weight: float = within("[0, inf)", 1.0)
    """Weight of the KL divergence: 1 for the ELBO, above 1 for disentangled latents (beta-VAE)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.width % 8:
            self.refuse("width", "it must be a multiple of 8, as Tensor Cores require")


def conv(
    inputs: int,
    outputs: int,
    stride: int = 1,
) -> nn.Conv2d:
    """A 3 x 3 convolution, initialized as in He et al. 2015 (arXiv:1502.01852, section 2.2)."""
    layer = nn.Conv2d(
        inputs,
        outputs,
        3,
        stride,
        padding=1,
    )
    nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
    nn.init.zeros_(layer.get_parameter("bias"))
    return layer


class Block(nn.Module):
    """Halves or doubles the resolution, then applies a residual block of two convolutions."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        down: bool,
    ) -> None:
        super().__init__()
        self.grow: nn.Module
        if down:
            self.grow = nn.Identity()
            self.enter = conv(inputs, outputs, stride=2)
        else:
            self.grow = nn.Upsample(scale_factor=2)
            self.enter = conv(inputs, outputs)
        self.norm1 = nn.GroupNorm(8, outputs)
        self.norm2 = nn.GroupNorm(8, outputs)
        self.conv1 = conv(outputs, outputs)
        self.conv2 = conv(outputs, outputs)
        # starts as the identity: Goyal et al. 2017, arXiv:1706.02677, section 5.1
        nn.init.zeros_(self.conv2.weight)

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(self.grow(x))
        hidden = F.silu(self.norm1(x))
        hidden = self.conv1(hidden)
        hidden = F.silu(self.norm2(hidden))
        y: Tensor = self.conv2(hidden)
        return x + y


class VAE(nn.Module):
    """Images (n, channels, size, size) to latents (n, latent), and back to distributions."""

    def __init__(self, cfg: ModelConfig, spec: Spec) -> None:
        super().__init__()
        self.stages = cfg.stages
        self.latent = cfg.latent
        self.kl_weight = cfg.kl_weight
        widths = [cfg.width * 2**stage for stage in range(cfg.stages + 1)]
        pixels = spec.size // 2**cfg.stages
        self.inner = (widths[-1], pixels, pixels)
        features = math.prod(self.inner)

        self.stem = conv(spec.channels, cfg.width)
        encoder = []
        for inputs, outputs in pairwise(widths):
            encoder.append(Block(inputs, outputs, down=True))
        decoder = []
        for outputs, inputs in pairwise(widths):
            decoder.append(Block(inputs, outputs, down=False))
        decoder.reverse()
        self.blocks = nn.ModuleList(encoder + decoder)
        self.to_latent = nn.Linear(features, 2 * cfg.latent)
        self.from_latent = nn.Linear(cfg.latent, features)
        self.norm = nn.GroupNorm(8, cfg.width)
        self.head = conv(cfg.width, 2 * spec.channels)
        # each pixel starts with the mean and standard deviation of the data
        nn.init.zeros_(self.head.weight)

        mean = torch.tensor(spec.mean).view(1, -1, 1, 1)
        std = torch.tensor(spec.std).view(1, -1, 1, 1)
        self.mean = nn.Buffer(mean, persistent=False)
        self.std = nn.Buffer(std, persistent=False)
        draws = np.random.default_rng(0).standard_normal((DRAWS, cfg.latent))
        self.draws = nn.Buffer(
            torch.tensor(draws).float(),
            persistent=False,
        )

    def encode(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and log-variance of the latents of prepared images, each (n, latent)."""
        x = self.stem(images)
        for block in self.blocks[: self.stages]:
            x = block(x)
        x = self.to_latent(F.silu(x).flatten(1))
        mean, log_variance = x.to(images.dtype).chunk(2, dim=1)
        return mean, log_variance.clamp(-15, 15)

    def pixels(self, latents: Tensor) -> tuple[Tensor, Tensor]:
        """Return location and log-scale of each pixel's distribution, of prepared images."""
        x = self.from_latent(latents).unflatten(1, self.inner)
        for block in self.blocks[self.stages :]:
            x = block(x)
        x = self.head(F.silu(self.norm(x)))
        location, log_scale = x.to(latents.dtype).chunk(2, dim=1)
        # A logistic distribution of scale sqrt(3) / pi has standard deviation 1.
        log_scale = log_scale + math.log(math.sqrt(3) / math.pi)
        return location, log_scale.clamp(min=-7)  # the minimum of Salimans et al.

    def decode(self, latents: Tensor) -> Tensor:
        """Return the most likely images for latents, with values from 0 to 1."""
        location, _ = self.pixels(latents)
        return (location * self.std + self.mean).clamp(0, 1)

    def predict(self, images: Tensor) -> Tensor:
        """Return reconstructions of prepared images, with values from 0 to 1."""
        mean, _ = self.encode(images)
        return self.decode(mean)

    def sample(
        self,
        count: int,
        generator: torch.Generator,
    ) -> Tensor:
        """Sample new images, with values from 0 to 1."""
        latents = torch.randn(
            count,
            self.latent,
            device=generator.device,
            generator=generator,
        )
        return self.decode(latents)

    def noise(self, levels: Tensor, like: Tensor) -> Tensor:
        """Return noise (n, latent): in validation the image selects it, the same in any batch."""
        if self.training:
            return torch.randn_like(like)
        # exact in integers; a sum in fp32 is not, above 2 ** 24
        draws = levels.long().sum((1, 2, 3)) % DRAWS
        return self.draws.index_select(0, draws)

    def forward(
        self,
        images: Tensor,
        labels: Tensor,
    ) -> tuple[Tensor, dict[str, tuple[Tensor, int]]]:
        """Return the loss in nats per dimension, and each metric's sum over the batch.

        `bits_per_dim` is the negative ELBO. The labels are unused.
        """
        mean, log_variance = self.encode(images)
        levels = ((images * self.std + self.mean) * 255).round()
        std = (log_variance / 2).exp()
        latents = mean + std * self.noise(levels, mean)
        location, log_scale = self.pixels(latents)
        half = 0.5 / (255 * self.std)  # half the width of a level
        logs = log_probability(images, levels, location, log_scale, half)
        nats = -logs.flatten(1).sum(1)
        # from N(0, 1): the paper's appendix B
        kl = 0.5 * (mean**2 + log_variance.exp() - 1 - log_variance).sum(1)
        dimensions = images[0].numel()
        loss = (nats + self.kl_weight * kl).mean() / dimensions

        count = len(images)
        unit = dimensions * math.log(2)
        metrics = {"loss": (loss.detach() * count, count)}
        parts = {
            "bits_per_dim": nats + kl,
            "reconstruction": nats,
            "kl": kl,
        }
        for name, part in parts.items():
            bits = part.detach().sum() / unit
            metrics[name] = (bits, count)
        return loss, metrics


def log_probability(
    x: Tensor,
    levels: Tensor,
    location: Tensor,
    log_scale: Tensor,
    half: Tensor,
) -> Tensor:
    """Return the log-probability of levels from 0 to 255, at prepared pixels x.

    A level has the logistic mass within half a level of it: Salimans et al. 2017
    (arXiv:1701.05517, section 2.1). s(a) - s(b) = s(a) s(-b) (1 - exp(b - a)) for sigmoids.
    """
    scale = log_scale.exp()
    above = F.logsigmoid((x + half - location) / scale)
    below = F.logsigmoid((location - x + half) / scale)
    width = 2 * half / scale
    inner = above + below + torch.log(-torch.expm1(-width))
    highest = torch.where(levels > 254.5, below, inner)
    return torch.where(levels < 0.5, above, highest)


def build(cfg: ModelConfig, spec: Spec) -> VAE:
    """Build the model for this data, with initialized weights.

    Raises:
        UserError: the image size is not a multiple of 2 ** stages.
    """
    step = 2**cfg.stages
    if spec.size % step:
        cfg.refuse("stages", f"the image size of {spec.size} pixels must be a multiple of {step}")
    return VAE(cfg, spec)
