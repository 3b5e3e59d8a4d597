"""Tools for unconditional image generation: evaluate, predict and export.

Delete this file together with the example's tools/task.py: nothing else needs it.
"""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from .. import data
from ..tools import evaluate, export, predict, task
from ..tools.trained_model import open_trained
from .conftest import load_exported

CPU = torch.device("cpu")


def test_evaluate_writes_the_loss_by_time_and_a_plot(short_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    evaluate.main([str(short_run), "--device=cpu"])
    found = json.loads(next(short_run.glob("checkpoints/*/evaluation.json")).read_text())
    by_time = found["loss_by_time"]
    assert found["loss_at_all_times"] == pytest.approx(sum(by_time) / 8)
    assert found["loss_at_all_times"] == pytest.approx(found["loss"], rel=0.05)
    assert f"0.125 to 0.250  {by_time[1]:8.4f}" in capsys.readouterr().out
    trained = open_trained(short_run, CPU)
    samples = data.load(trained.cfg.data).val
    images, _ = trained.prepare(samples.__getitems__(list(range(len(samples)))), False, torch.Generator())
    noise, times = trained.net.fixed_draws(images)
    with torch.no_grad():
        expected = trained.net.errors(images, noise, 0.125 + times / 8).mean().item()
    assert by_time[1] == pytest.approx(expected, rel=1e-4)
    with Image.open(next(short_run.glob("checkpoints/*/evaluation.png"))) as image:
        assert image.width > 1000


def test_predict_samples_new_images(short_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def sampled(*options: str) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
        target = tmp_path / "new.png"
        predict.main([str(short_run), "--device=cpu", f"--output={target}", "--steps=2", *options])
        with Image.open(target) as image:
            return np.asarray(image)

    first = sampled("--count=9")
    assert first.shape == (3 * 66 + 2, 3 * 66 + 2, 3)
    assert np.array_equal(first, sampled("--count=9"))
    assert not np.array_equal(first, sampled("--count=9", "--seed=1"))
    assert not np.array_equal(first, sampled("--count=9", "--steps=4"))
    monkeypatch.setattr(task, "BATCH", 4)
    trained, parts = open_trained(short_run, CPU), torch.Generator().manual_seed(0)
    with torch.no_grad():
        expected = torch.cat([trained.net.sample(count, parts, steps=2) for count in (4, 4, 1)])
        assert torch.equal(task.sample(trained, 9, 0, steps=2), expected)


def test_predict_rejects_invalid_input(short_run: Path, tmp_path: Path) -> None:
    cases = {
        "must end with .png": ["--output=a.txt"],
        "--count 0": ["--count=0"],
        "--steps 0": ["--steps=0"],
        "give another --output": [f"--output={tmp_path}/nowhere/a.png", "--count=1", "--steps=1"],
    }
    for message, options in cases.items():
        with pytest.raises(SystemExit, match=message):
            predict.main([str(short_run), *options, "--device=cpu"])
    assert not list(tmp_path.rglob(".partial*"))


@pytest.mark.parametrize(("form", "suffix"), [("torch", ".pt2"), ("onnx", ".onnx")])
def test_exported_model_samples_with_eulers_method(short_run: Path, tmp_path: Path, form: str, suffix: str) -> None:
    export.main([str(short_run), f"--format={form}", f"--output={tmp_path}/model{suffix}"])
    exported, trained = load_exported(tmp_path / f"model{suffix}"), open_trained(short_run, CPU)
    points = torch.randn(3, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        for number in range(50):
            velocities, images = exported(points, torch.full((3,), number / 50))
            points += velocities / 50
        expected = trained.net.sample(3, torch.Generator().manual_seed(0))
    torch.testing.assert_close(images, trained.net.pixels(points))
    torch.testing.assert_close(images, expected, rtol=0, atol=0.02)
