"""Fine-tuning: `train.init_from`, `train.freeze`, `train.unfreeze_step` and `lora.rank`."""

import json
import math
import shutil
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from .. import checkpoint, techniques
from ..config import Config, LoraConfig, OptimConfig, TrainConfig
from ..distributed import World
from ..errors import UserError
from ..techniques import freeze, init_from, lora, weight_files
from ..techniques.ema import Ema
from ..techniques.init_from import InitFrom
from ..train import train
from .conftest import evaluate_run, network, read_losses, read_rows, read_weights


class Net(nn.Module):
    """Blocks with BatchNorm, and a head of any size."""

    def __init__(self, classes: int = 2) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)) for _ in range(2))
        self.head = nn.Linear(4, classes)


def load(net: nn.Module, path: object, world: World, **options: Any) -> dict[str, str]:
    return InitFrom(TrainConfig(init_from=str(path), **options), world).load(net)


def write_safetensors(weights: dict[str, Tensor], folder: Path) -> Path:
    safetensors = pytest.importorskip("safetensors.torch")
    safetensors.save_file(weights, folder / "weights.safetensors")
    return folder / "weights.safetensors"


def write_shards(weights: dict[str, Tensor], folder: Path) -> Path:
    for number, name in enumerate(weights):
        torch.save({name: weights[name]}, folder / f"part-{number}.bin")
    places = {name: f"part-{number}.bin" for number, name in enumerate(weights)}
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": places}))
    return folder


def write_of_lightning(weights: dict[str, Tensor], folder: Path) -> Path:
    inside = {f"model.{name}": value for name, value in weights.items()}
    torch.save({"state_dict": inside, "epoch": 3, "optimizer_states": [{"x": torch.ones(1)}]}, folder / "a.ckpt")
    return folder / "a.ckpt"


def write_compiled(weights: dict[str, Tensor], folder: Path) -> Path:
    inside = {name.replace("blocks.0.", "blocks.0._orig_mod."): value.half() for name, value in weights.items()}
    torch.save({f"module._orig_mod.{name}": value for name, value in inside.items()}, folder / "a.pt")
    return folder / "a.pt"


def write_beside_others(weights: dict[str, Tensor], folder: Path) -> Path:
    """As torch's example for ImageNet does; a dict in a dict; and an average of some."""
    other = {"best": torch.tensor(0.9), "run": "name", "ema": {"head.weight": weights["head.weight"]}}
    inside = {**weights, "head.weight": torch.zeros(2, 4)}
    torch.save({**other, "model": {"state_dict": inside}}, folder / "a.pt")
    return folder / "a.pt"


@pytest.mark.parametrize(
    "write", [write_safetensors, write_shards, write_of_lightning, write_compiled, write_beside_others]
)
def test_weights_of_other_programs_are_loaded(world: World, tmp_path: Path, write: Callable[..., Path]) -> None:
    net, other = Net(), Net()
    net.blocks[0].lora_A = nn.ModuleDict({"default": nn.Linear(4, 2, bias=False)})  # which no file has
    kept = {name: value.clone() for name, value in other.state_dict().items()}
    said = load(net, write(kept, tmp_path), world)
    assert said == {"weights": f"16 of 16 tensors from {write(kept, tmp_path)}"}
    for name, value in kept.items():
        torch.testing.assert_close(net.state_dict()[name], value, rtol=1e-3, atol=1e-3)


def test_what_does_not_fit_is_named(world: World, tmp_path: Path) -> None:
    net, file = Net(), tmp_path / "a.pt"
    weights = {f"encoder.{name}": value for name, value in Net(3).state_dict().items() if "blocks.0" not in name}
    torch.save(weights | {"encoder.pooler": torch.ones(1)}, file)
    said = load(net, file, world, init_map={"encoder.": ""})
    assert said["weights"] == f"7 of 16 tensors from {file}, which has 1 more"
    assert said["initialized"].startswith("of another shape: head.weight (2, 4) instead of (3, 4), head.bias (2,)")
    assert said["initialized"].endswith(
        "not in there: blocks.0.0.weight, blocks.0.0.bias, blocks.0.1.weight and 4 more"
    )
    with pytest.raises(UserError, match=r'no name is that .* try train.init_map=\{"encoder.": ""\}'):
        load(net, file, world)
    with pytest.raises(UserError, match="no name in .* begins with 'bert.'; they are such as encoder.blocks.1"):
        load(net, file, world, init_map={"bert.": ""})
    torch.save({"a": torch.ones(2)}, file)
    with pytest.raises(UserError, match=r"no name is that of the model's: a there, and blocks.0.0.weight"):
        load(net, file, world)
    torch.save({"head.weight": torch.ones(2, 4)}, file)
    with pytest.raises(UserError, match="no name is that of the model's: encoder.head.weight there, and blocks.0"):
        load(net, file, world, init_map={"": "encoder."})
    torch.save({"head.bias": torch.ones(7)}, file)
    with pytest.raises(UserError, match=r"no tensor has the shape of the model's: head.bias \(2,\) instead of \(7,\)"):
        load(net, file, world)
    torch.save({"head.bias": torch.tensor([1.0, math.nan])}, file)
    with pytest.raises(UserError, match="head.bias there has values that are not finite: give other weights"):
        load(net, file, world)


def test_average_starts_with_the_loaded_weights(world: World, tmp_path: Path) -> None:
    torch.save({"head.weight": torch.ones(2, 4)}, tmp_path / "a.pt")
    net = Net()
    ema, hook = Ema(net, 0.9, world), InitFrom(TrainConfig(init_from=str(tmp_path / "a.pt")), world)
    init_from.load(net, [ema, hook])
    assert torch.equal(ema.average["head.weight"], torch.ones(2, 4))


def test_names_are_translated() -> None:
    """Old ones of LayerNorm, and the longest prefix of `train.init_map` first."""
    assert init_from.match(["x.LayerNorm.bias"], {"x.LayerNorm.beta": "x.LayerNorm.beta"}, ["x.LayerNorm.beta"])
    cfg = TrainConfig(init_from="a", init_map={"bert.": "", "bert.layer.": "blocks."})
    found = init_from._renamed(["bert.layer.0", "module.bert.head", "other"], cfg)
    assert list(found.values()) == ["blocks.0", "head", "other"]


def test_average_of_a_run_is_read_with_lora_merged(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    first, second = (f"x.{name}" for name in (lora.FIRST, lora.SECOND))
    average = {first: torch.ones(1, 2), second: torch.ones(2, 1), "y": torch.ones(1)}
    state = {"ema": average, "model": {"x.base_layer.weight": torch.ones(2, 2), "y": torch.zeros(1)}}
    manifest = {"config": {"lora": asdict(LoraConfig(rank=1, alpha=2.0))}, "files": {"state.pt": {"size": 1}}}
    monkeypatch.setattr(checkpoint, "find", lambda path: path)
    monkeypatch.setattr(checkpoint, "read_manifest", lambda path: manifest)
    monkeypatch.setattr(checkpoint, "read_state", lambda path, mmap: state)
    weights, files = weight_files.read(str(tmp_path))
    assert {name: value().unique().tolist() for name, value in weights.items()} == {"x.weight": [3.0], "y": [1.0]}
    assert files == {tmp_path / "state.pt": {"size": 1}}


def test_a_weight_of_two_names_is_not_missing(world: World, tmp_path: Path) -> None:
    net = Net(4)
    net.head.weight = net.blocks[0][0].weight  # type: ignore[index]
    torch.save({"head.weight": torch.ones(4, 4)}, tmp_path / "a.pt")
    said = load(net, tmp_path / "a.pt", world)
    assert "blocks.0.0.weight" not in said["initialized"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "there is no such file or folder, and nothing is downloaded"),
        (b"PK broken", "it is damaged, or has more than tensors"),
        ({"model": nn.Linear(1, 1)}, "it is damaged, or has more than tensors"),
        ({"model": 3, "ema": 0.9}, "there are no tensors in it by name"),
        ([torch.ones(1)], "there are no tensors in it by name"),
        ({"blocks.0.1.num_batches_tracked": torch.tensor(3)}, "no name is that of the model's"),
        ({0: torch.ones(1)}, "no name is that of the model's: 0 there"),
        (b"\x80\x02}X\xff", "it is damaged, or has more than tensors"),
        ({"head.weight": torch.ones(2, 4).char()}, "head.weight there is of torch.int8, torch.strided: give floating-"),
        ({"head.weight": torch.ones(2, 4).to_sparse()}, "torch.float32, torch.sparse_coo: give floating-point weights"),
    ],
)
def test_unreadable_weights_are_refused(world: World, tmp_path: Path, content: Any, message: str) -> None:
    file = tmp_path / "a.pt"
    if isinstance(content, bytes):
        file.write_bytes(content)
    elif content is not None:
        torch.save(content, file)
    with pytest.raises(UserError, match=message) as raised:
        load(Net(), file, world)
    assert "\n" not in str(raised.value)


def test_folder_without_weights_is_refused(world: World, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has no good checkpoint, and none of model.safetensors"):
        load(Net(), tmp_path, world)
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": {"a": "gone.safetensors"}}')
    with pytest.raises(UserError, match=r"cannot read .*gone.safetensors \(No such file"):
        load(Net(), tmp_path, world)


def frozen(net: nn.Module, *patterns: str) -> set[str]:
    freeze.freeze(net, TrainConfig(freeze=patterns))
    return {name for name, parameter in net.named_parameters() if not parameter.requires_grad}


def test_patterns_choose_what_is_frozen() -> None:
    everything = {name for name, _ in Net().named_parameters()}
    first = {name for name in everything if name.startswith("blocks.0.")}
    assert frozen(Net(), "blocks.0") == frozen(Net(), "blocks.[0]*") == first
    assert frozen(Net(), "*", "!head", "head.bias") == everything - {"head.weight"}
    net = Net()
    frozen(net, "blocks.0", "blocks.1.1.bias")
    optimizer = techniques.build_optimizer(net, OptimConfig())
    assert sum(len(group["params"]) for group in optimizer.param_groups) == len(everything) - 5
    assert not any(name.startswith("blocks.0.0") for name in Ema(net, 0.9, World(0, 1, torch.device("cpu"))).average)
    net.train()
    assert [part.training for part in net.modules() if isinstance(part, nn.BatchNorm1d)] == [False, True]


def test_batchnorm_without_weights_is_frozen_by_its_name() -> None:
    net = nn.Sequential(nn.BatchNorm1d(2, affine=False), nn.BatchNorm1d(2, affine=False), nn.Linear(2, 2))
    frozen(net, "0", "2.bias")
    assert [part.training for part in net.train()] == [False, True, True]


@pytest.mark.parametrize(
    ("patterns", "message"),
    [
        (["blocks.7"], "'blocks.7', and nothing in the model has such a name: did you mean blocks.1 or blocks.0"),
        (["*", "!haed.*"], "'!haed.*', .*: did you mean head"),
        (["xyz"], "it has blocks, head"),
        (["*"], "no parameter is left to train"),
        (["!head"], "it freezes nothing, as all that it names is excepted; begin with"),
    ],
)
def test_wrong_freeze_is_refused(patterns: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message.replace("*", r"\*").replace(r".\*:", ".*:")):
        frozen(Net(), *patterns)


@pytest.mark.parametrize("name", ["adamw", "sgd", "muon"])
def test_optimizer_goes_on_with_what_was_frozen(name: Any) -> None:
    """The first update of a parameter is the same after updates of others."""
    nets = [Net(), Net()]
    nets[1].load_state_dict(nets[0].state_dict())
    for net, steps in zip(nets, (2, 1), strict=True):
        optimizer = techniques.build_optimizer(net, OptimConfig(name=name, fused=True))
        for left in reversed(range(steps)):
            for parameter in net.head.parameters() if left else net.parameters():
                parameter.grad = torch.ones_like(parameter)
            optimizer.step()
    assert torch.equal(nets[0].blocks[0][0].weight, nets[1].blocks[0][0].weight)  # type: ignore[index]


FROZEN = next(name for name, _ in network().named_parameters())
"""A parameter of the project's model."""


def test_phases_resume_exactly_without_the_first_weights(
    config: Callable[..., Config], world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before the step, at it and after it; the frozen weight changes from there on only."""
    steps = ["--train.eval_every=1", "--log.every=1", "--checkpoint.keep=9", "--train.ema=0.8", "--train.steps=4"]
    train(config("--run.name=first", "--train.steps=1"), world)
    options = [*steps, f"--train.init_from={tmp_path}/first", f'--train.freeze=["{FROZEN}"]', "--train.unfreeze_step=2"]
    train(config("--run.name=whole", *options), world)
    printed = capsys.readouterr().out
    assert f"weights     {len(network().state_dict())} of" in printed
    assert "are trained\n" in printed
    first = read_weights(tmp_path / "first", 1)[FROZEN]
    kept = [checkpoint.read_state(tmp_path / f"whole/checkpoints/step-0000000{step}") for step in (1, 2, 3)]
    assert all(torch.equal(first, state["model"][FROZEN]) for state in kept[:2])
    assert not torch.equal(first, kept[2]["model"][FROZEN])
    assert checkpoint.read_manifest(tmp_path / "whole/checkpoints/step-00000004")["init_from"]["path"].endswith("first")
    shutil.rmtree(tmp_path / "first")
    for step in (1, 3):
        shutil.copytree(tmp_path / "whole", tmp_path / "cut")
        for later in range(step + 1, 5):
            shutil.rmtree(tmp_path / f"cut/checkpoints/step-0000000{later}")
        train(config("--run.name=cut", *options), world)
        assert read_rows(tmp_path / "cut", "val") == read_rows(tmp_path / "whole", "val")
        assert read_losses(tmp_path / "cut") == read_losses(tmp_path / "whole")
        ours, theirs = (read_weights(tmp_path / name, 4) for name in ("cut", "whole"))
        assert all(torch.equal(value, theirs[name]) for name, value in ours.items())
        shutil.rmtree(tmp_path / "cut")
    assert evaluate_run(tmp_path / "whole")["loss"] == pytest.approx(
        read_rows(tmp_path / "whole", "val")[-1]["loss"], rel=1e-5
    )
    with pytest.raises(UserError, match=r"train.freeze is .* there and None here"):
        train(config("--run.name=whole", "--run.resume=auto", *options[:-2]), world)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--train.unfreeze_step=9", "--optim.schedule=range", "--train.steps=40"], "a range test keeps no checkpoint"),
        (["--lora.rank=2"], "lora.rank freezes all but lora.modules_to_save"),
        (["--train.init_from=nowhere"], "train.init_from is nowhere: there is no such file"),
    ],
)
def test_what_does_not_go_together_is_refused(
    config: Callable[..., Config], world: World, tmp_path: Path, options: list[str], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        train(config("--run.name=a", f'--train.freeze=["{FROZEN}"]', *options), world)
    assert not (tmp_path / "a").exists()


def test_phases_and_step_graphs_do_not_go_with_unfreezing(config: Callable[..., Config]) -> None:
    net: Any = Net()
    net.phases = ("blocks", "head")
    with pytest.raises(UserError, match="the model's `phases` choose in each step what is trained"):
        freeze.begin(net, config('--train.freeze=["head"]', "--train.unfreeze_step=3"), 0, 20)
    options = ['--train.freeze=["head"]', "--train.unfreeze_step=3", "--speed.step_graph=true"]
    with pytest.raises(UserError, match="speed.step_graph needs a gradient of each parameter; use null"):
        freeze.begin(Net(), config(*options), 0, 20)


def test_lora_without_its_package_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(UserError, match=r"lora.rank=2 needs a package .* pip install -e '.\[finetune\]'"):
        lora.apply(Net(), LoraConfig(rank=2))


def test_lora_is_merged_into_the_weight() -> None:
    base, first, second = nn.Linear(4, 3), torch.randn(2, 4), torch.randn(3, 2)
    names = {"x.base_layer.weight": base.weight, "x.base_layer.bias": base.bias, "y.bias": base.bias}
    matrices = {"x.lora_A.default.weight": first, "x.lora_B.default.weight": second}
    found = lora.merge(
        {name: value.detach() for name, value in (names | matrices).items()}, LoraConfig(rank=2, alpha=8)
    )
    assert found.keys() == {"x.weight", "x.bias", "y.bias"}
    inputs = torch.randn(5, 4)
    torch.testing.assert_close(inputs @ found["x.weight"].T, inputs @ base.weight.T + 4 * inputs @ first.T @ second.T)


def test_lora_is_added_to_the_layers_that_match() -> None:
    """Where peft is installed, as importing it takes seconds."""
    pytest.importorskip("peft")
    net = Net()
    lora.apply(net, LoraConfig(rank=2, modules_to_save=("head",)))
    trained = {name for name, parameter in net.named_parameters() if parameter.requires_grad}
    layers = [f"blocks.{number}.0.lora_{letter}.default.weight" for number in range(2) for letter in "AB"]
    assert trained == {*layers, "head.weight", "head.bias"}
    for wrong, message in ((("blokcs",), "did you mean blocks"), (("head.1",), "did you mean head")):
        with pytest.raises(UserError, match=message):
            lora.apply(Net(), LoraConfig(rank=2, target_modules=wrong))
    with pytest.raises(UserError, match="no linear layers in `blocks`"):
        lora.apply(nn.Sequential(nn.Linear(2, 2)), LoraConfig(rank=2))
