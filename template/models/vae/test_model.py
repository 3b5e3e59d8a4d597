"""The autoencoder: likelihood, metrics, noise of the validation, new images, and config errors."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from ..data import DataConfig, Prepare, Spec, load
from ..errors import UserError
from ..model import VAE, ModelConfig, build, log_probability


def prepared(count: int) -> tuple[VAE, tuple[Tensor, ...]]:
    """Return a model with a random head, and validation images with their labels."""
    _, val_set, spec = load(DataConfig())
    batch = Prepare(spec, DataConfig())(
        val_set.__getitems__(list(range(count))), False, torch.Generator()
    )
    torch.manual_seed(0)
    model = build(ModelConfig(), spec)
    torch.nn.init.normal_(model.head.weight, std=0.05)
    return model, batch


@pytest.mark.parametrize(
    ("location", "log_scale"), [(0.0, -0.6), (-3.0, 1.0), (0.4, -7.0), (2.0, -3.0)]
)
def test_probabilities_of_levels_sum_to_one(location: float, log_scale: float) -> None:
    mean, std, levels = 0.3, 0.38, torch.arange(256.0)
    x = (levels / 255 - mean) / std
    logs = log_probability(
        x, levels, torch.tensor(location), torch.tensor(log_scale), torch.tensor(0.5 / (255 * std))
    )
    assert logs.isfinite().all()
    assert logs.double().exp().sum().item() == pytest.approx(1, abs=1e-4)


def test_parts_add_up_and_labels_are_unused() -> None:
    model, (images, labels) = prepared(8)
    _, metrics = model.eval()(images, labels)
    torch.testing.assert_close(
        metrics["bits_per_dim"][0], metrics["reconstruction"][0] + metrics["kl"][0]
    )
    torch.testing.assert_close(metrics["loss"][0] / math.log(2), metrics["bits_per_dim"][0])
    assert torch.equal(metrics["loss"][0], model(images, labels.flip(0))[1]["loss"][0])


@torch.no_grad()
def test_validation_does_not_depend_on_the_batch_and_training_samples_noise() -> None:
    model, (images, labels) = prepared(6)
    together = model.eval()(images, labels)[1]["bits_per_dim"][0]
    parts = sum(
        model(images[part : part + 1], labels[:1])[1]["bits_per_dim"][0] for part in range(6)
    )
    torch.testing.assert_close(together, parts, rtol=1e-4, atol=0)  # fp32 adds in another order
    model.train()
    assert model(images, labels)[0] != model(images, labels)[0]


def test_likelihood_is_fp32_under_autocast() -> None:
    model, batch = prepared(4)
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        loss, metrics = model.eval()(*batch)
    assert all(
        total.dtype == torch.float32 for total in (loss, *(total for total, _ in metrics.values()))
    )
    torch.testing.assert_close(loss, model(*batch)[0], rtol=0.02, atol=0.02)


@pytest.mark.parametrize("size", ["small", "base"])
@torch.no_grad()
def test_new_images_and_reconstructions_have_the_shape_of_the_images(size: Any) -> None:
    model = build(ModelConfig(size=size), Spec(3, 64, ("a", "b"), (0.5,) * 3, (0.25,) * 3)).eval()
    assert model.predict(torch.randn(2, 3, 64, 64)).shape == (2, 3, 64, 64)
    first, again = (model.sample(5, torch.Generator().manual_seed(1)) for _ in range(2))
    assert first.shape == (5, 3, 64, 64)
    assert torch.equal(first, again)
    assert 0 <= first.min() <= first.max() <= 1


def test_image_size_that_cannot_be_halved_is_an_error() -> None:
    with pytest.raises(
        UserError, match="model.size is base: the image size of 8 pixels must be a multiple of 16"
    ):
        build(ModelConfig(size="base"), Spec(1, 8, ("0",), (0.3,), (0.38,)))
