"""The test split: only `evaluate --split test` reads it."""

from pathlib import Path

import pytest
import torch
from engine import Package

MODEL = "mlp"


def test_evaluate_uses_the_test_split(p: Package, tmp_path: Path) -> None:
    world = p.distributed.World(0, 1, torch.device("cpu"))
    expected = p.train_here(tmp_path, "--train.steps=8", "--data.test_fraction=0.3")
    assert p.evaluate.evaluate_run(tmp_path / "a", world) == pytest.approx(expected, rel=1e-5)
    found = p.evaluate.evaluate_run(tmp_path / "a", world, "test")
    cfg, net, _, spec = p.evaluate.load_run(tmp_path / "a", world.device)
    batch = p.data.load_test(cfg.data).tensors
    assert len(batch[2]) > 150
    prepared = p.data.Prepare(spec, cfg.data)(
        batch,
        False,
        torch.Generator(),
    )
    loss, _ = net.eval()(*prepared)
    assert found["loss"] == pytest.approx(loss.item(), rel=1e-4)


def test_a_missing_test_split_is_one_line(
    p: Package, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = p.distributed.World(0, 1, torch.device("cpu"))
    p.train_here(tmp_path, "--train.steps=2")
    message = "there is no test split: train with data.test_fraction"
    with pytest.raises(p.errors.UserError, match=message):
        p.evaluate.evaluate_run(tmp_path / "a", world, "test")
    monkeypatch.delattr(p.data, "load_test")  # as in an older data.py, or one of your own
    with pytest.raises(p.errors.UserError, match=message):
        p.evaluate.evaluate_run(tmp_path / "a", world, "test")
