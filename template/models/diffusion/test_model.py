"""The diffusion model: loss, sampler, architecture and config errors."""

import pytest
import torch
from torch import Tensor

from ..data import DataConfig, Prepare, Spec, load
from ..errors import UserError
from ..model import ModelConfig, UNet, build


def prepared(count: int) -> tuple[UNet, tuple[Tensor, ...]]:
    """Return a model without zero weights, and validation images with their labels."""
    _, val_set, spec = load(DataConfig())
    batch = Prepare(spec, DataConfig())(
        val_set.__getitems__(list(range(count))), False, torch.Generator()
    )
    torch.manual_seed(0)
    model = build(ModelConfig(), spec)
    for name, weight in model.named_parameters():
        if name.endswith(("conv2.weight", "head.weight")):
            torch.nn.init.normal_(weight, std=0.05)
    return model.eval(), batch


def test_sampler_follows_the_velocity_to_the_images(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the exact velocity of pixels that are independent and Gaussian, new images have their distribution."""
    model = build(ModelConfig(), Spec(1, 8, ("a",), (0.5,), (0.1,)))
    mean, std = 0.6, 0.8  # of prepared images

    def exact(points: Tensor, times: Tensor) -> Tensor:
        time = times.view(-1, 1, 1, 1)  # E[image - noise | point]
        slope = (time * std**2 - (1 - time)) / (time**2 * std**2 + (1 - time) ** 2)
        return mean + slope * (points - time * mean)

    monkeypatch.setattr(model, "predict", exact)
    new = model.sample(1000, torch.Generator().manual_seed(0))
    assert new.mean().item() == pytest.approx(0.5 + 0.1 * mean, abs=0.002)
    assert new.std().item() == pytest.approx(0.1 * std, abs=0.002)


@torch.no_grad()
def test_validation_does_not_depend_on_the_batch() -> None:
    model, (images, labels) = prepared(6)
    parts = sum(model(images[part : part + 1], labels[:1])[1]["loss"][0] for part in range(6))
    # fp32 adds in another order
    torch.testing.assert_close(model(images, labels)[1]["loss"][0], parts, rtol=1e-4, atol=0)


@torch.no_grad()
def test_noise_and_times_of_training_follow_the_seed_and_labels_are_unused() -> None:
    model, (images, labels) = prepared(6)
    losses = []
    for seed, given in ((0, labels), (0, labels.flip(0)), (1, labels)):
        torch.manual_seed(seed)
        losses.append(model.train()(images, given)[0])
    assert losses[0] == losses[1] != losses[2]


def test_loss_is_fp32_under_autocast() -> None:
    model, batch = prepared(4)
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        loss, metrics = model(*batch)
        assert model.predict(batch[0], torch.rand(4)).dtype == torch.float32
    assert loss.dtype == metrics["loss"][0].dtype == torch.float32
    torch.testing.assert_close(loss, model(*batch)[0], rtol=0.02, atol=0.02)


@torch.no_grad()
def test_new_images_depend_on_the_seed_and_velocities_on_the_time() -> None:
    model, (images, _) = prepared(3)
    first, again, other = (
        model.sample(3, torch.Generator().manual_seed(seed), steps=2) for seed in (1, 1, 2)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert 0 <= first.min() <= first.max() <= 1
    early, late = (model.predict(images, torch.full((3,), time)) for time in (0.1, 0.9))
    assert not torch.allclose(early, late)


def test_image_size_that_cannot_be_halved_is_an_error() -> None:
    with pytest.raises(
        UserError, match="model.size is 114M: the image size of 48 pixels must be a multiple of 32"
    ):
        build(ModelConfig(size="114M"), Spec(1, 48, ("a",), (0.5,), (0.1,)))
