"""Weights as safetensors: those of each checkpoint, which a new model loads."""

from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, load_model

from .. import checkpoint, data, loader, precision
from ..data import Prepare
from ..errors import Stopped
from ..metrics import evaluate
from ..model import build
from .support import CPU, ask_to_stop, at_step, config, equal, few_samples, rows, state, train_here

ON = ("--safetensors.enabled=true", "--run.keep=9")


def files(folder: Path) -> list[Path]:
    return sorted((folder / "first/checkpoints").glob("step-*/weights.safetensors"))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("safetensors")
    train_here(folder, *ON)
    return folder


def test_each_checkpoint_has_its_weights(run: Path) -> None:
    assert [int(file.parent.name[5:]) for file in files(run)] == [4, 8, 12]
    for file in files(run):
        saved = torch.load(file.parent / "state.pt", weights_only=True)["model"]
        weights = load_file(file)
        assert all(torch.equal(value, saved[name]) for name, value in weights.items())
        with safe_open(file, framework="pt") as opened:
            metadata = opened.metadata()
        assert metadata["step"] == str(int(file.parent.name[5:]))
        assert saved.keys() - weights.keys() == metadata.keys() - {"format", "model", "step"}, (
            "tied weights"
        )
    assert not [*run.rglob("*.partial")]


def test_new_model_with_them_has_the_same_validation(run: Path, tmp_path: Path) -> None:
    cfg = config(tmp_path)
    with few_samples():
        _, val_set, spec = data.load(cfg.data)
    net = build(cfg.model, spec)
    load_model(net, files(run)[-1])
    _, autocast, _ = precision.setup(cfg.speed, CPU.device)
    order, counted = loader.val_batches(len(val_set), cfg.train.micro_batch, CPU)
    batches = loader.Loader(val_set, order, cfg.loader, CPU)
    found = evaluate(net, batches, counted, Prepare(spec, cfg.data), autocast, CPU)
    assert found["loss"] == rows(run, "val")[-1]["loss"]


def test_checkpoint_of_a_stop_has_its_weights_and_stays_intact(tmp_path: Path) -> None:
    with at_step(1, ask_to_stop), pytest.raises(Stopped):
        train_here(tmp_path, *ON)
    assert [file.parent.name for file in files(tmp_path)] == ["step-00000002"]
    assert checkpoint.newest(tmp_path / "first/checkpoints") == files(tmp_path)[0].parent


def test_checkpoints_that_lack_the_file_get_it_later(run: Path, tmp_path: Path) -> None:
    train_here(tmp_path, "--run.keep=9")
    assert not files(tmp_path)
    train_here(tmp_path, *ON)
    assert equal(
        [load_file(file) for file in files(tmp_path)], [load_file(file) for file in files(run)]
    )
    assert state(tmp_path)["step"] == 12
