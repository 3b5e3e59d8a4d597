"""Classifying: the measures are scikit-learn's, new pictures get classes, and the exported model agrees."""

import csv
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.metrics import accuracy_score, confusion_matrix, precision_recall_fscore_support

from .. import data
from ..config import Config
from ..distributed import World
from ..errors import UserError
from ..readers.images import opened
from ..tools import evaluate, export, predict, task
from ..tools.trained_model import open_trained
from ..train import train

CPU = torch.device("cpu")


@pytest.fixture
def run(config: Callable[..., Config], world: World) -> Path:
    """A run of a few steps."""
    cfg = config("--run.name=a", "--train.steps=4", "--train.eval_every=4")
    train(cfg, world)
    return cfg.run.dir / "a"


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """A folder with three digits of the embedded set, one as a larger JPEG."""
    folder = tmp_path / "pictures"
    (folder / "more").mkdir(parents=True)
    images = data.load(data.DataConfig()).val.__getitems__([0, 1, 2])[0]
    for number, image in enumerate(images[:, 0].numpy()):
        Image.fromarray(image).save(folder / f"{number}.png")
    (folder / "2.png").unlink()
    Image.fromarray(images[2, 0].numpy()).resize((100, 100)).save(folder / "more" / "2.jpg")
    return folder


@pytest.mark.parametrize("classes", [3, 40])
def test_measures_are_those_of_scikit_learn(world: World, classes: int) -> None:
    noise = torch.Generator().manual_seed(0)
    labels, scores = torch.randint(0, classes, (500,), generator=noise), torch.randn(500, classes, generator=noise)
    scores[torch.arange(500), labels] += 1
    scores[:, 1] = -10  # a class that is never said
    names = tuple(f"name{number}" for number in range(classes))
    details = task.Details(data.Spec(1, 8, names, (0.0,), (1.0,)), CPU)
    net = SimpleNamespace(predict=lambda images: images)
    for part in range(0, 500, 200):
        details.add(net, (scores[part : part + 200], labels[part : part + 200]))
    values, table = details.result(world)
    true, said = labels.numpy(), scores.argmax(1).numpy()
    assert values["confusion"] == confusion_matrix(true, said).tolist()
    assert values["accuracy"] == pytest.approx(accuracy_score(true, said))
    precision, recall, _, count = precision_recall_fscore_support(true, said, zero_division=np.nan)
    rows = [values["classes"][name] for name in names]
    for key, theirs in (("precision", precision), ("recall", recall), ("count", count)):
        ours = [np.nan if row[key] is None else row[key] for row in rows]
        np.testing.assert_allclose(ours, theirs)
    assert values["classes"]["name1"]["precision"] is None
    if classes == 3:
        assert f"name0     {precision[0]:.4f}  {recall[0]:.4f}    {count[0]}" in table
        assert len({len(line) for line in table.rpartition("\n\n")[2].splitlines()}) == 1, "a crooked matrix"
    else:
        wrong = confusion_matrix(true, said)
        np.fill_diagonal(wrong, 0)
        worst = table.splitlines()[2].split()
        assert int(worst[0]) == wrong.max() == wrong[int(worst[3][4:]), int(worst[-1][4:])]


def test_evaluate_writes_them_and_a_picture(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    evaluate.main([str(run), "--device=cpu"])
    found = json.loads(next(run.glob("checkpoints/*/evaluation.json")).read_text())
    assert np.array(found["confusion"]).sum() == len(data.load(data.DataConfig()).val)
    assert "true|said" in capsys.readouterr().out
    with Image.open(next(run.glob("checkpoints/*/evaluation.png"))) as image:
        assert image.width > 1000


def test_new_pictures_get_classes(run: Path, pictures: Path, capsys: pytest.CaptureFixture[str]) -> None:
    predict.main([str(run), str(pictures), "--device=cpu"])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == [str(pictures / name) for name in ("0.png", "1.png", "more/2.jpg")]

    trained = open_trained(run, CPU)
    images, labels = data.load(data.DataConfig()).val.__getitems__([0, 1])
    scores = trained.net.predict(trained.prepare((images, labels), False, torch.default_generator)[0])
    expected = scores.softmax(1).topk(3)
    for name in ("a.csv", "a.json"):
        target = pictures.parent / name
        options = ["--top=3", "--batch=2", f"--output={target}", "--device=cpu"]
        predict.main([str(run), str(pictures / "0.png"), str(pictures / "1.png"), str(pictures / "more"), *options])
        if name == "a.csv":
            with target.open(newline="") as text:
                rows = list(csv.DictReader(text))
        else:
            rows = json.loads(target.read_text())
            assert [found["class"] for found in rows[0]["top"]] == [
                str(label) for label in expected.indices[0].tolist()
            ]
        assert len(rows) == 3
        for row, chances, classes in zip(rows, expected.values.tolist(), expected.indices.tolist(), strict=False):
            assert row["class"] == str(classes[0])
            assert float(row["probability"]) == pytest.approx(chances[0], rel=1e-4)
    assert "class_3" in (pictures.parent / "a.csv").read_text().splitlines()[0]


def test_what_predict_refuses(run: Path, pictures: Path) -> None:
    (pictures / "bad.png").write_text("no image")
    (pictures.parent / "none").mkdir()
    cases = {
        "cannot read the image .*bad.png": [str(pictures)],
        "nowhere.png .*No such file": [str(pictures / "nowhere.png")],
        "none holds no image": [str(pictures.parent / "none")],
        "must end with .csv or .json": [str(pictures / "0.png"), "--output=a.txt"],
        "--top 0": [str(pictures / "0.png"), "--top=0"],
        "give another --output": [str(pictures / "0.png"), f"--output={pictures}/nowhere/a.csv"],
    }
    for message, options in cases.items():
        with pytest.raises(SystemExit, match=message):
            predict.main([str(run), *options, "--device=cpu"])
    assert not list(pictures.rglob(".partial*"))


def test_the_exported_model_gives_probabilities(run: Path, tmp_path: Path) -> None:
    for form, suffix in (("torch", ".pt2"), ("onnx", ".onnx")):
        export.main([str(run), f"--format={form}", f"--output={tmp_path}/model{suffix}"])
    images, labels = data.load(data.DataConfig()).val.__getitems__([0, 1, 2])
    chances = torch.export.load(tmp_path / "model.pt2").module()(images)
    trained = open_trained(run, CPU)
    scores = trained.net.predict(trained.prepare((images, labels), False, torch.default_generator)[0])
    torch.testing.assert_close(chances, scores.softmax(1))
    assert (tmp_path / "model.onnx").stat().st_size > 1000


def test_a_picture_marks_what_is_wrong(run: Path) -> None:
    trained = open_trained(run, CPU)
    found = data.load(data.DataConfig())
    images, _ = trained.prepare(found.val.__getitems__([0, 1]), False, torch.default_generator)
    said = trained.net.predict(images).argmax(1)
    figure = task.picture(trained, (images, torch.stack([said[0], (said[1] + 1) % 10])))
    assert [axes.get_title() for axes in figure.axes] == [str(said[0].item()), f"{said[1]}, not {(said[1] + 1) % 10}"]


def test_errors_are_of_one_line(pictures: Path) -> None:
    with pytest.raises(UserError, match="mend it") as caught:
        opened(pictures, 8, 1)
    assert "\n" not in str(caught.value)
