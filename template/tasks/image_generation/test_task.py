"""Image generation tools: evaluate, predict and export.

Delete this file together with the example's tools/task.py: nothing else needs it.
"""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from .. import data
from ..distributed import World
from ..tools import evaluate, export, image_grid, predict, task
from ..tools.trained_model import open_trained
from .conftest import load_exported

CPU = torch.device("cpu")


def test_evaluate_writes_the_parts_of_the_loss_and_a_plot(short_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    evaluate.main([str(short_run), "--device=cpu"])
    found = json.loads(next(short_run.glob("checkpoints/*/evaluation.json")).read_text())
    assert found["bits_per_image"] == pytest.approx(found["bits_per_dim"] * 64, rel=1e-5)
    assert found["bits_per_dim"] == pytest.approx(found["reconstruction"] + found["kl"], rel=1e-5)
    assert 0 <= found["active_latents"] <= found["latents"] == 16
    text = capsys.readouterr().out
    assert f"{found['bits_per_dim']:.4f}{found['bits_per_image']:16.1f}" in text
    with Image.open(next(short_run.glob("checkpoints/*/evaluation.png"))) as image:
        assert image.width > 1000


def test_only_latents_that_depend_on_the_image_are_active(short_run: Path, world: World) -> None:
    trained = open_trained(short_run, CPU)
    batch = trained.prepare(data.load(data.DataConfig()).val.__getitems__(list(range(64))), False, torch.Generator())
    with torch.no_grad():
        trained.net.to_latent.weight[:] = 0
        trained.net.to_latent.weight[:3] = torch.randn(3, trained.net.to_latent.in_features)
        details = task.Details(trained.spec, CPU)
        for part in range(0, 64, 16):
            details.add(trained.net, tuple(values[part : part + 16] for values in batch))
    values, table = details.result(world)
    assert values["active_latents"] == 3
    assert "3 of 16 latents" in table


def test_predict_samples_new_images(short_run: Path, tmp_path: Path) -> None:
    def sampled(*options: str) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
        target = tmp_path / "new.png"
        predict.main([str(short_run), "--device=cpu", f"--output={target}", *options])
        with Image.open(target) as image:
            return np.asarray(image)

    assert sampled("--count=10").shape == (3 * 66 + 2, 4 * 66 + 2, 3)
    assert np.array_equal(sampled("--count=9"), sampled("--count=9"))
    assert not np.array_equal(sampled("--count=9"), sampled("--count=9", "--seed=1"))


def test_grid_places_images_in_order() -> None:
    images = torch.stack([torch.full((1, 40, 40), value) for value in (0.0, 0.2, 0.4, 0.6, 1.0)])
    pixels = np.asarray(image_grid.grid(images, 3))
    assert pixels.shape == (2 * 82 + 2, 3 * 82 + 2, 3)
    assert [pixels[40, 40, 0], pixels[40, 200, 0], pixels[120, 100, 0]] == [0, 102, 255]
    assert set(pixels[:2].flatten()) == {128}


def test_predict_reconstructs_images(short_run: Path, tmp_path: Path) -> None:
    folder = tmp_path / "images"
    folder.mkdir()
    images, labels = data.load(data.DataConfig()).val.__getitems__([0, 1, 2])
    for number, image in enumerate(images[:, 0].numpy()):
        Image.fromarray(image).save(folder / f"{number}.png")
    predict.main([str(short_run), str(folder), "--device=cpu", f"--output={tmp_path}/pairs.png"])
    trained = open_trained(short_run, CPU)
    with torch.no_grad():
        reconstructed = trained.net.predict(trained.prepare((images, labels), False, torch.Generator())[0])
    expected = torch.stack([images / 255, reconstructed], dim=1).flatten(0, 1)
    with Image.open(tmp_path / "pairs.png") as grid:
        difference = np.asarray(grid).astype(int) - np.asarray(image_grid.grid(expected, 4)).astype(int)
    assert abs(difference).max() <= 1


def test_predict_rejects_invalid_input(short_run: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.png").write_text("not an image")
    (tmp_path / "none").mkdir()
    cases = {
        "cannot read the image .*bad.png": [str(tmp_path / "bad.png")],
        "none contains no image": [str(tmp_path / "none")],
        "must end with .png": ["--output=a.txt"],
        "--count 0": ["--count=0"],
        "give another --output": [f"--output={tmp_path}/nowhere/a.png"],
    }
    for message, options in cases.items():
        with pytest.raises(SystemExit, match=message):
            predict.main([str(short_run), *options, "--device=cpu"])
    assert not list(tmp_path.rglob(".partial*"))


@pytest.mark.parametrize(("form", "suffix"), [("torch", ".pt2"), ("onnx", ".onnx")])
def test_exported_model_returns_reconstructions(short_run: Path, tmp_path: Path, form: str, suffix: str) -> None:
    export.main([str(short_run), f"--format={form}", f"--output={tmp_path}/model{suffix}"])
    images, labels = data.load(data.DataConfig()).val.__getitems__([0, 1, 2])
    reconstructed = load_exported(tmp_path / f"model{suffix}")(images)
    trained = open_trained(short_run, CPU)
    with torch.no_grad():
        expected = trained.net.predict(trained.prepare((images, labels), False, torch.Generator())[0])
    torch.testing.assert_close(reconstructed, expected)
    assert math.prod(reconstructed.shape) == 3 * 64
