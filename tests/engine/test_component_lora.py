"""Low-rank adapters: their formula, what is frozen, pretrained weights, two ranks."""

from pathlib import Path

import pytest
import torch
from engine import MakePackage, Package, equal, rows, saved
from torch import Tensor

ON = [
    "--lora.enabled=true",
    "--lora.rank=2",
    "--lora.alpha=6",
    "--train.steps=6",
    "--train.eval_every=3",
]
ON += ["--optim.lr=1e-2"]


def start_of(p: Package, **model: object) -> dict[str, Tensor]:
    torch.manual_seed(0)
    return dict(p.model.build(p.model.ModelConfig(**model), p.data.Spec()).state_dict())


def test_merged_weight_is_the_sum_with_the_scaled_product(
    tiny: MakePackage, tmp_path: Path
) -> None:
    p = tiny("lora")
    p.train_here(tmp_path, *ON)
    weights = p.checkpoint.load_weights(tmp_path / "a")
    world = p.distributed.World(0, 1, torch.device("cpu"))
    _, net, _, _ = p.evaluate.load_run(tmp_path / "a", world.device)
    found = p.components.lora.merged(net).state_dict()
    start = start_of(p)
    assert found.keys() == start.keys()
    for layer in ("layers.0", "layers.4"):
        product = (
            weights[f"{layer}.lora_B.default.weight"] @ weights[f"{layer}.lora_A.default.weight"]
        )
        torch.testing.assert_close(found[f"{layer}.weight"], start[f"{layer}.weight"] + 3 * product)
        assert product.any()
    assert torch.equal(found["layers.4.bias"], start["layers.4.bias"])
    assert type(net).__name__ == "Net"
    assert type(net.layers[0]) is torch.nn.Linear


def test_only_what_is_named_changes(tiny: MakePackage, tmp_path: Path) -> None:
    p = tiny("lora")
    start = start_of(tiny("lora"), kind="batch_norm")
    options = [*ON, "--model.kind=batch_norm", '--lora.target=["*.0"]', '--lora.train=["layers.4"]']
    p.train_here(tmp_path, *options)
    found = {
        name.replace(".base_layer.", "."): value for name, value in saved(tmp_path)["model"].items()
    }
    adapters = {name for name in found if ".lora_" in name}
    assert adapters == {f"layers.0.lora_{part}.default.weight" for part in "AB"}
    changed = {name for name in start if not torch.equal(found[name], start[name])}
    assert changed == {"layers.4.weight", "layers.4.bias"}, "not the statistics of BatchNorm"
    p.train_here(tmp_path / "norm", *options, '--lora.train=["layers.1","layers.4"]')
    assert saved(tmp_path / "norm")["model"]["layers.1.num_batches_tracked"] == 6


def test_base_weights_are_loaded_and_merged_ones_go_on(tiny: MakePackage, tmp_path: Path) -> None:
    p = tiny("finetune", "lora")
    p.train_here(tmp_path / "plain", "--train.steps=2")
    pretrained = p.checkpoint.load_weights(tmp_path / "plain/a")
    p.train_here(
        tmp_path / "lora",
        *ON,
        "--finetune.enabled=true",
        f"--finetune.weights={tmp_path / 'plain/a'}",
    )
    found = saved(tmp_path / "lora")["model"]
    assert equal(
        {
            name: found[name.replace("s.0.", "s.0.base_layer.").replace("s.4.", "s.4.base_layer.")]
            for name in pretrained
        },
        pretrained,
    )
    other = [
        "--finetune.enabled=true",
        f"--finetune.weights={tmp_path / 'lora/a'}",
        "--train.steps=1",
    ]
    with pytest.raises(
        p.errors.UserError, match="merge its LoRA adapters first, or set lora.enabled=true"
    ):
        p.train_here(tmp_path / "refused", *other)
    world = p.distributed.World(0, 1, torch.device("cpu"))
    _, net, _, _ = p.evaluate.load_run(tmp_path / "lora/a", world.device)
    torch.save(p.components.lora.merged(net).state_dict(), tmp_path / "merged.pt")
    p.train_here(
        tmp_path / "on", *other, f"--finetune.weights={tmp_path / 'merged.pt'}", "--optim.lr=1e-12"
    )
    assert rows(tmp_path / "on", "val")[0]["loss"] == pytest.approx(
        rows(tmp_path / "lora", "val")[-1]["loss"], rel=1e-5
    )
    p.train_here(tmp_path / "both", *ON, *other, "--train.steps=1", "--optim.lr=1e-12")
    loss = rows(tmp_path / "both", "val")[0]["loss"]
    assert loss == pytest.approx(rows(tmp_path / "lora", "val")[-1]["loss"], rel=1e-5)


def test_nothing_left_to_adapt_is_one_line(tiny: MakePackage, tmp_path: Path) -> None:
    p = tiny("lora")
    with pytest.raises(
        p.errors.UserError, match=r"^lora.train is .*: it has all layers to adapt: name fewer"
    ):
        p.train_here(tmp_path, *ON, '--lora.train=["layers"]')


def test_two_ranks_train_as_one_process(tiny: MakePackage, tmp_path: Path) -> None:
    p = tiny("lora")
    options = [*ON, "--train.global_batch_size=16", "--optim.eps=1e-4", "--model.dropout=0"]
    p.train_here(tmp_path / "one", *options, "--train.batch_size=8")
    p.finish(tmp_path / "two", *options, "--train.batch_size=8", ranks=2)
    torch.testing.assert_close(
        saved(tmp_path / "two")["model"], saved(tmp_path / "one")["model"], rtol=1e-4, atol=1e-6
    )


def test_sharded_model_has_adapters(tiny: MakePackage, tmp_path: Path) -> None:
    p = tiny("finetune", "lora", "fsdp")
    options = [*ON, "--train.global_batch_size=16", "--optim.eps=1e-4"]
    p.train_here(tmp_path / "plain", "--train.steps=2")
    options += [
        "--finetune.enabled=true",
        f"--finetune.weights={tmp_path / 'plain/a'}",
        "--model.dropout=0",
    ]
    p.train_here(tmp_path / "one", *options, "--train.batch_size=8")
    p.finish(tmp_path / "two", *options, "--train.batch_size=8", "--fsdp.enabled=true", ranks=2)
    found, expected = (p.checkpoint.load_weights(tmp_path / name / "a") for name in ("two", "one"))
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-5)


def test_convolutions_are_adapted(package: MakePackage) -> None:
    p = package("resnet", "lora")
    settings = p.components.lora.LoraConfig(enabled=True, rank=2)
    net = p.components.lora.Lora(settings, None).convert_model(
        torch.nn.Sequential(
            torch.nn.Conv2d(
                3,
                8,
                3,
            ),
            torch.nn.Flatten(),
        )
    )
    torch.nn.init.normal_(net.get_parameter("0.lora_B.default.weight"))
    images = torch.randn(2, 3, 5, 5)
    expected = net(images)
    torch.testing.assert_close(
        p.components.lora.merged(net)(images), expected, rtol=1e-4, atol=1e-5
    )


def test_weight_of_two_layers_is_left_out(package: MakePackage) -> None:
    p = package("lstm", "lora")
    lora = p.components.lora.Lora(p.components.lora.LoraConfig(enabled=True), None)
    net = torch.nn.Sequential(
        torch.nn.Linear(4, 4),
        torch.nn.Linear(4, 4),
        torch.nn.Linear(4, 4),
    )
    net[2].weight = net[0].weight
    assert lora._layers(net) == ["1"]
    net = torch.nn.Sequential(torch.nn.MultiheadAttention(8, 2), torch.nn.LSTM(4, 4))
    with pytest.raises(
        p.errors.UserError,
        match="Sequential has no linear layer or convolution whose weight is its own",
    ):
        lora.convert_model(net)
