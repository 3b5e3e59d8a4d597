"""Models: published parameter counts, explicit values, what is refused, losses under autocast."""

import dataclasses
from typing import Any

import pytest
import torch
from engine import MakePackage
from matrix import MODELS
from torch import Tensor, nn

CLASSES = tuple(map(str, range(1000)))
RGB = {"mean": (0.5,) * 3, "std": (0.25,) * 3}
IMAGENET = {"channels": 3, "size": 224, "classes": CLASSES, **RGB}
GREY = {
    "channels": 1,
    "classes": ("a", "b"),
    "mean": (0.5,),
    "std": (0.25,),
}
PUBLISHED: list[tuple[str, str | int, dict[str, Any], int]] = [
    # BERT without its classifier has 30,522 tokens, and 1,000 weights and a bias per class here
    ("bert", "mini", {"vocabulary": 30522, "length": 512}, 11_170_560 + 3 * 257),
    ("bert", "base", {"vocabulary": 30522, "length": 512}, 109_482_240 + 3 * 769),
    ("bert", "large", {"vocabulary": 30522, "length": 512}, 335_141_888 + 3 * 1025),
    # with our 47 rows of padding in the embedding
    ("gpt", "124M", {"vocabulary": 50257, "context": 1024}, 124_439_808 + 47 * 768),
    ("gpt", "355M", {"vocabulary": 50257, "context": 1024}, 354_823_168 + 47 * 1024),
    # per layer four gates with two matrices and two biases, and a norm
    ("lstm", "small", {"vocabulary": 256, "context": 32}, 256 * 96 + 2 * 74_688 + 192),
    ("lstm", "base", {"vocabulary": 256, "context": 32}, 256 * 640 + 3 * 3_283_200 + 1280),
    ("resnet", 18, IMAGENET, 11_689_512),
    ("resnet", 50, IMAGENET, 25_557_032),
    # as in a widely used implementation
    ("unet", "base", {"channels": 3, "size": 512, "classes": ("a",), **RGB}, 31_037_633),
    # B/16 as documented by torchvision, S/16 as in timm; Ti/16 computed here
    ("vit", "Ti/16", IMAGENET, 5_717_416),
    ("vit", "S/16", IMAGENET, 22_050_664),
    ("vit", "B/16", IMAGENET, 86_567_656),
]
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("bert", {"width": 12}, r"model.heads is 2: it must divide model.width=12"),
    ("bert", {"heads": 3}, "model.heads is 3"),
    ("diffusion", {"widths": ()}, "model.widths"),
    ("diffusion", {"widths": (16, 12)}, "model.widths"),
    ("gpt", {"width": 12}, "model.heads is 2: it must divide model.width=12 into multiples of 8"),
    ("gpt", {"heads": 3}, "model.heads is 3"),
    ("lstm", {"width": 0}, "model.width is 0"),
    ("resnet", {"width": 12}, "model.width is 12: it must be a multiple of 8"),
    ("resnet", {"depths": (2, 0)}, "model.depths"),
    ("resnet", {"size": 34}, "model.size is 34: it must be small, 18, 50"),
    ("unet", {"width": 12}, "model.width"),
    ("unet", {"depth": 11}, "model.depth"),
    ("vae", {"width": 12}, "model.width is 12"),
    ("vit", {"heads": 3}, "model.heads is 3"),
]
DO_NOT_FIT: list[tuple[str, dict[str, Any], int, str]] = [
    ("diffusion", {"size": "114M"}, 48, "image size of 48 pixels must be a multiple of 32"),
    ("unet", {}, 30, "data.size is 30: .* a multiple of 4; the nearest is 32"),
    ("unet", {"depth": 4}, 100, "data.size is 100: .* a multiple of 16; the nearest is 96"),
    (
        "vae",
        {"size": "base"},
        8,
        "stages is 4: the image size of 8 pixels must be a multiple of 16",
    ),
    ("vit", {"patch": 16}, 8, "model.patch is 16: it must divide the image size of 8 pixels"),
]


@pytest.mark.parametrize(("model", "size", "values", "published"), PUBLISHED)
def test_sizes_have_the_published_parameter_counts(
    package: MakePackage, model: str, size: str | int, values: dict[str, Any], published: int
) -> None:
    p = package(model)
    if model == "bert":
        values = {
            **values,
            "classes": ("a", "b", "c"),
            "tokenizer": "",
        }
    with torch.device("meta"):
        net = p.model.build(p.model.ModelConfig(size=size), p.data.Spec(**values))
    assert sum(parameter.numel() for parameter in net.parameters()) == published


@pytest.mark.parametrize("model", MODELS)
def test_explicit_values_win_over_those_of_the_size(package: MakePackage, model: str) -> None:
    """Also where they equal the defaults; heads must divide the width."""
    p = package(model)
    defaults = dataclasses.asdict(p.model.ModelConfig())
    for size, values in p.model.SIZES.items():
        for name in values.keys() - {"heads", "width"}:
            cfg = p.model.ModelConfig(**{"size": size, name: defaults[name]})
            expected = {
                **defaults,
                **values,
                "size": size,
                name: defaults[name],
            }
            assert dataclasses.asdict(cfg) == expected


@pytest.mark.parametrize(("model", "values", "message"), REFUSED)
def test_impossible_sizes_are_refused(
    package: MakePackage, model: str, values: dict[str, Any], message: str
) -> None:
    p = package(model)
    with pytest.raises(p.errors.UserError, match=message):
        p.model.ModelConfig(**values)


@pytest.mark.parametrize(("model", "values", "pixels", "message"), DO_NOT_FIT)
def test_images_that_do_not_fit_are_refused(
    package: MakePackage, model: str, values: dict[str, Any], pixels: int, message: str
) -> None:
    p = package(model)
    with pytest.raises(p.errors.UserError, match=message):
        p.model.build(p.model.ModelConfig(**values), p.data.Spec(size=pixels, **GREY))


def test_label_smoothing_needs_labels(package: MakePackage) -> None:
    p = package("mlp")
    spec = p.data.load(p.data.DataConfig(builtin="diabetes"))[2]
    with pytest.raises(p.errors.UserError, match="label_smoothing is 0.1: the target is numeric"):
        p.model.build(p.model.ModelConfig(label_smoothing=0.1), spec)


@pytest.mark.parametrize("model", ["diffusion", "vae"])
def test_loss_is_fp32_under_autocast(package: MakePackage, model: str) -> None:
    p = package(model)
    torch.manual_seed(0)
    spec = p.data.Spec(
        1,
        8,
        ("a",),
        (0.3,),
        (0.38,),
    )
    net = p.model.build(p.model.ModelConfig(), spec).eval()
    torch.nn.init.normal_(net.head.weight, std=0.05)
    images = (
        torch.randint(
            0,
            256,
            (4, 1, 8, 8),
        )
        / 255
        - 0.3
    ) / 0.38
    with torch.no_grad():
        expected, _ = net(images, torch.zeros(4))
        with torch.autocast("cpu", torch.bfloat16):
            loss, metrics = net(images, torch.zeros(4))
    assert loss.dtype == torch.float32
    assert all(total.dtype == torch.float32 for total, _ in metrics.values())
    torch.testing.assert_close(loss, expected, rtol=0.02, atol=0.02)


@pytest.mark.parametrize("model", MODELS)
def test_no_layer_has_a_bias_before_batch_norm(package: MakePackage, model: str) -> None:
    """The norm subtracts it again."""
    p = package(model)
    train_set, _, spec = p.data.load(p.data.DataConfig())
    net = p.model.build(p.model.ModelConfig(), spec)
    producers: dict[int, tuple[nn.Module, Tensor]] = {}
    wrong = []

    def remember(layer: nn.Module, arguments: tuple[Any, ...], output: Any) -> None:
        producer, _ = producers.get(id(arguments[0]), (None, None)) if arguments else (None, None)
        is_norm = isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d)
        if is_norm and getattr(producer, "bias", None) is not None:
            wrong.append(producer)
        producers[id(output)] = layer, output  # the reference keeps the id unique

    for layer in net.modules():
        if not list(layer.children()):
            layer.register_forward_hook(remember)
    loaded = p.contracts.load_batch(train_set, [*range(8)])
    prepare = p.data.Prepare(spec, p.data.DataConfig())
    p.loss.compute_loss(net, prepare(loaded, False, torch.default_generator))
    assert not wrong
