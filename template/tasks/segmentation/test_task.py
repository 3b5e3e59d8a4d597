"""Segmentation tools: evaluate, predict and export.

Delete this file together with the example's tools/task.py: nothing else needs it.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.metrics import accuracy_score, confusion_matrix, jaccard_score, precision_score, recall_score

from ..config import parse
from ..data import Spec
from ..distributed import World
from ..tools import evaluate, export, predict, task
from ..tools.trained_model import open_trained
from ..train import train
from .conftest import SMALL


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a short run."""
    folder = tmp_path_factory.mktemp("runs")
    options = [f"--run.dir={folder}", "--run.name=a"]
    train(parse("test", "", [*SMALL, *options]), World(0, 1, torch.device("cpu")))
    return folder / "a"


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """A folder of three images of different sizes, one of them in a subfolder."""
    rng = np.random.default_rng(0)
    (tmp_path / "images" / "deep").mkdir(parents=True)
    for name, shape in (("one.png", (48, 32)), ("two.jpg", (20, 70)), ("deep/one.png", (32, 32))):
        Image.fromarray(rng.integers(0, 256, shape, np.uint8)).save(tmp_path / "images" / name)
    return tmp_path / "images"


class Fixed:
    """A model with given predictions."""

    def __init__(self, predicted: torch.Tensor, classes: int) -> None:
        self.scores = torch.nn.functional.one_hot(predicted, classes).permute(0, 3, 1, 2).float()

    def predict(self, images: torch.Tensor) -> torch.Tensor:
        return self.scores[images[:, 0, 0, 0].long()]


@pytest.mark.parametrize("ignore", [None, 255])
def test_metrics_equal_those_of_scikit_learn(world: World, ignore: int | None) -> None:
    torch.manual_seed(0)
    names = ("sky", "road", "a long name", "none")
    spec = Spec(1, 9, names, (0, 1, 2, 3), ignore, (1, 1, 1, 1), (0.5,), (0.5,))
    masks, predicted = torch.randint(0, 3, (5, 9, 9)), torch.randint(0, 3, (5, 9, 9))
    if ignore is not None:
        masks[:, 2:5] = ignore
    details, net = task.Details(spec, world.device), Fixed(predicted, 4)
    for part in (torch.tensor([0, 1]), torch.tensor([2, 3, 4])):
        details.add(net, (part.view(-1, 1, 1, 1).float().expand(-1, 1, 9, 9), masks[part]))
    values, table = details.result(world)
    y_true, y_pred = (part[masks != 255].numpy() for part in (masks, predicted))
    assert values["confusion"] == confusion_matrix(y_true, y_pred, labels=range(4)).tolist()
    assert values["pixel_accuracy"] == pytest.approx(accuracy_score(y_true, y_pred))
    assert values["mean_iou"] == pytest.approx(jaccard_score(y_true, y_pred, average="macro"))
    for key, score in (("iou", jaccard_score), ("precision", precision_score), ("recall", recall_score)):
        ours = [values["classes"][name][key] for name in names[:3]]
        assert ours == pytest.approx(score(y_true, y_pred, average=None))
        assert values["classes"]["none"][key] is None
    assert f"a long name  {values['classes']['a long name']['iou']:.4f}" in table
    json.dumps(values)


def test_evaluate_writes_metrics_and_a_plot(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    evaluate.main([str(run), "--device=cpu"])
    checkpoint = max(run.glob("checkpoints/step-*"))
    written = json.loads((checkpoint / "evaluation.json").read_text())
    assert written["mean_iou"] == pytest.approx(written["iou"], rel=1e-5)
    assert written["pixel_accuracy"] == pytest.approx(written["accuracy"], rel=1e-5)
    assert "background" in capsys.readouterr().out
    assert (checkpoint / "evaluation.png").stat().st_size > 5_000


def test_predict_writes_masks_of_the_size_of_the_images(
    run: Path, images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "masks"
    predict.main([str(run), str(images), "--device=cpu", "--output", str(target), "--overlay", "--batch=2"])
    assert "3 images segmented" in capsys.readouterr().out
    assert len(list(target.rglob("*"))) == 7, "three masks, three overlays, a folder"
    for name, size in (("one.png", (32, 48)), ("two.png", (70, 20)), ("deep/one.png", (32, 32))):
        with Image.open(target / name) as mask, Image.open((target / name).with_suffix(".overlay.png")) as overlay:
            assert (mask.mode, mask.size) == ("P", size)
            assert (overlay.mode, overlay.size) == ("RGB", size)
            assert np.asarray(mask).max() <= 10


def test_mask_without_resizing_equals_the_prediction(run: Path, images: Path, tmp_path: Path) -> None:
    predict.main([str(run), str(images / "deep"), "--device=cpu", "--output", str(tmp_path / "masks")])
    trained = open_trained(run, torch.device("cpu"))
    image = torch.from_numpy(np.asarray(Image.open(images / "deep" / "one.png")).copy()).view(1, 1, 32, 32)
    with torch.no_grad():
        mean, std = trained.spec.mean[0], trained.spec.std[0]
        expected = trained.net.predict((image / 255 - mean) / std)[0].argmax(0)
    written = np.asarray(Image.open(tmp_path / "masks" / "one.png"))
    assert (written == expected.numpy()).mean() > 0.99


def test_masks_have_the_values_of_the_training_masks(run: Path, images: Path, tmp_path: Path) -> None:
    run = shutil.copytree(run, tmp_path / "run")
    found = next(run.glob("checkpoints/step-*/manifest.json"))
    manifest = json.loads(found.read_text())
    manifest["fixed"]["data"]["values"] = list(range(100, 111))
    del manifest["sha256"]  # as in older checkpoints
    found.write_text(json.dumps(manifest))
    predict.main([str(run), str(images / "two.jpg"), "--device=cpu", "--output", str(tmp_path / "masks")])
    assert set(np.unique(np.asarray(Image.open(tmp_path / "masks" / "two.png")))) <= set(range(100, 111))


def test_predict_writes_fractions_of_pixels_as_json(run: Path, images: Path, tmp_path: Path) -> None:
    target = tmp_path / "fractions.json"
    predict.main([str(run), str(images), "--device=cpu", "--output", str(target)])
    fractions = json.loads(target.read_text())
    assert [Path(row["file"]).name for row in fractions] == ["one.png", "one.png", "two.jpg"]
    for row in fractions:
        assert sum(row["pixels"].values()) == pytest.approx(1)
        assert set(row["pixels"]) == {"background", *map(str, range(10))}


def test_resized_argmax_equals_interpolate() -> None:
    torch.manual_seed(0)
    logits = torch.randn(5, 8, 8)
    expected = torch.nn.functional.interpolate(logits[None], (21, 13), mode="bilinear", align_corners=False)[0].argmax(
        0
    )
    assert torch.equal(task._resized_argmax(logits, (13, 21)), expected)


@pytest.mark.parametrize(
    ("inputs", "options", "message"),
    [
        (["images/nowhere.png"], [], "cannot read the image .*nowhere.png"),
        (["empty"], [], "empty contains no image"),
        (["images/bad.png"], [], "cannot read the image .*bad.png"),
        (["images/one.png", "images/deep/one.png"], [], "would both be written to"),
        (["images"], ["--output=images"], "would overwrite the image"),
        (["images/one.png"], ["--output=file"], "cannot write file.*one.png"),
        (["images/one.png"], ["--output=a.json", "--overlay"], "--overlay needs a folder, not --output a.json"),
        (["images/one.png"], ["--batch=0"], "--batch 0"),
    ],
)
def test_predict_rejects_invalid_input(
    run: Path,
    images: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    inputs: list[str],
    options: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    if "bad" in inputs[0]:
        (images / "bad.png").write_bytes((images / "one.png").read_bytes()[:50])
    with pytest.raises(SystemExit, match=message):
        predict.main([str(run), *inputs, "--device=cpu", *options])
    assert not list(tmp_path.rglob(".partial*"))


@pytest.mark.parametrize("kind", ["torch", "onnx"])
def test_exported_model_equals_the_original(run: Path, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    export.main([str(run), f"--format={kind}"])
    assert "maximum difference" in capsys.readouterr().out


def test_exported_module_maps_bytes_to_logits(run: Path) -> None:
    module: Any
    module, inputs = task.export_module(open_trained(run, torch.device("cpu"), "fp32"))
    assert (inputs[0].dtype, inputs[0].shape) == (torch.uint8, (2, 1, 32, 32))
    logits = module(*inputs)
    assert (logits.dtype, logits.shape) == (torch.float32, (2, 11, 32, 32))
