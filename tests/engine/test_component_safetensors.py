"""Weights as safetensors: averaged, tied, sharded, NHWC, and checkpoints that appear late."""

import importlib
from pathlib import Path
from typing import Any

import pytest
import torch
from engine import MakePackage, Package, checkpoints, equal, rows, saved
from safetensors import safe_open
from safetensors.torch import load_file, load_model

SIX = ["--train.steps=6", "--train.eval_every=3", "--safetensors.enabled=true"]


def read(folder: Path, name: str = "a") -> list[dict[str, torch.Tensor]]:
    """Return the weights in the files of a run, the oldest first."""
    return [load_file(folder / "weights.safetensors") for folder in checkpoints(folder, name)]


def test_averaged_weights_are_preferred_and_a_tied_weight_is_there_once(
    package: MakePackage, tmp_path: Path
) -> None:
    p: Package = package("gpt", "ema", "safetensors")
    few_samples = importlib.import_module(f"{p.name}.tests.support").few_samples
    options = [
        *SIX,
        "--train.steps=2",
        "--train.eval_every=2",
        "--train.batch_size=4",
        "--data.context=32",
    ]
    with few_samples():
        p.train_here(tmp_path, *options, "--ema.enabled=true", "--ema.decay=0.5")
        _, val_set, spec = p.data.load(p.options(*options).data)
    [found] = read(tmp_path)
    state = saved(tmp_path)
    assert state["model"].keys() - found.keys() == {"head.weight"}
    average = state["components"]["ema"]["eval_weights"]
    assert all(torch.equal(found[name], average[name]) for name in average.keys() & found.keys())
    assert not torch.equal(found["tokens.weight"], state["model"]["tokens.weight"])
    cfg = p.options(f"--run.dir={tmp_path}", *options)
    net = p.model.build(cfg.model, spec)
    load_model(net, checkpoints(tmp_path)[0] / "weights.safetensors")
    assert net.head.weight is net.tokens.weight
    world = p.distributed.World(0, 1, torch.device("cpu"))
    order, counted = p.loader.val_batches(len(val_set), 4, world)
    batches = p.loader.Loader(val_set, order, cfg.loader, world)
    _, autocast, _ = p.precision.setup(cfg.speed, world.device)
    results = p.metrics.evaluate(
        net, batches, counted, p.data.Prepare(spec, cfg.data), autocast, world
    )
    assert results["loss"] == rows(tmp_path, "val")[-1]["loss"]
    with safe_open(checkpoints(tmp_path)[0] / "weights.safetensors", framework="pt") as opened:
        assert opened.metadata() == {
            "format": "pt",
            "step": "2",
            "model": "GPT",
            "head.weight": "tokens.weight",
        }


def test_nhwc_weights_are_written(package: MakePackage, tmp_path: Path) -> None:
    p = package("resnet", "safetensors")
    p.train_here(
        tmp_path, *SIX, "--train.steps=1", "--speed.channels_last=true", "--train.batch_size=4"
    )
    model = saved(tmp_path)["model"]
    assert not all(value.is_contiguous() for value in model.values())
    assert equal(read(tmp_path)[0], dict(model))


def test_checkpoint_that_appears_late_gets_its_file(
    tiny: MakePackage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with an asynchronous checkpointer: a checkpoint is complete only after its validation."""
    p = tiny("safetensors")
    (tmp_path / "a/checkpoints").mkdir(parents=True)
    save = p.checkpoint.Checkpoints.save
    waiting = list[Any]()

    def save_later(own: Any, state: dict[str, Any]) -> None:
        for earlier in waiting:
            save(own, earlier)
        waiting[:] = [p.loader.map_tensors(torch.clone, state)]

    monkeypatch.setattr(p.checkpoint.Checkpoints, "save", save_later)
    p.train_here(tmp_path, *SIX, "--train.steps=9")
    assert [folder.name for folder in checkpoints(tmp_path)] == ["step-00000003", "step-00000006"]
    for folder, weights in zip(
        checkpoints(tmp_path),
        read(tmp_path),
        strict=True,
    ):
        assert equal(weights, dict(torch.load(folder / "state.pt", weights_only=True)["model"]))


def test_checkpoint_that_the_coming_one_replaces_gets_no_file(
    tiny: MakePackage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread of `async-checkpoint` could not delete its folder.

    A file might appear in it meanwhile.
    """
    p = tiny("safetensors")
    p.train_here(tmp_path, *SIX, "--train.steps=3", "--safetensors.enabled=false")
    [only] = checkpoints(tmp_path)
    longer = [
        *SIX,
        "--train.steps=4",
        "--train.eval_every=4",
        "--run.keep=1",
        "--run.allow_changes=true",
    ]
    for best, expected in ((99, []), (3, [only])):
        (tmp_path / "a/checkpoints/best.json").write_text(f'{{"step": {best}, "value": 0}}')
        with monkeypatch.context() as patch:
            # it is not complete yet
            patch.setattr(p.checkpoint.Checkpoints, "save", lambda own, state: None)
            patch.setattr(
                p.components.safetensors.Safetensors, "on_train_end", lambda own, run: None
            )
            p.train_here(tmp_path, *longer)
        assert [file.parent for file in only.parent.rglob("weights.safetensors")] == expected
    p.train_here(tmp_path, *longer)


def test_checkpoint_that_is_replaced_meanwhile_is_no_error(
    tiny: MakePackage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    p = tiny("safetensors")
    own = p.components.safetensors
    monkeypatch.setattr(
        own,
        "weights_of",
        lambda folder: torch.load(folder / "gone"),
    )
    with pytest.raises(
        p.errors.UserError,
        match=r"^cannot write .*step-00000003/weights.safetensors: .*No such file",
    ):
        p.train_here(tmp_path / "there", *SIX)

    def replaced(folder: Path) -> Any:
        folder.rename(folder.with_name("replaced"))
        return torch.load(folder / "state.pt")

    monkeypatch.setattr(own, "weights_of", replaced)
    p.train_here(tmp_path / "replaced", *SIX, "--train.steps=3")


def test_file_that_cannot_be_written_is_one_line(tiny: MakePackage, tmp_path: Path) -> None:
    p = tiny("safetensors")
    p.train_here(tmp_path, *SIX, "--safetensors.enabled=false")
    (checkpoints(tmp_path)[0] / ".weights.safetensors.partial").mkdir()
    with pytest.raises(
        p.errors.UserError, match=r"^cannot write .*step-00000003/weights.safetensors: "
    ):
        p.train_here(tmp_path, *SIX)


def test_sharded_weights_are_whole(tiny: MakePackage, tmp_path: Path) -> None:
    p = tiny("fsdp", "safetensors")
    p.finish(tmp_path, *SIX, "--train.batch_size=4", "--fsdp.enabled=true", ranks=2)
    for folder, weights in zip(
        checkpoints(tmp_path),
        read(tmp_path),
        strict=True,
    ):
        assert equal(weights, dict(torch.load(folder / "weights.pt", weights_only=True)["model"]))
        assert p.checkpoint.newest(folder.parent) is not None
