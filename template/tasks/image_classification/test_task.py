"""Image classification tools: evaluate, predict and export.

Delete this file together with the example's tools/task.py: nothing else needs it.
"""

import csv
import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from sklearn.metrics import accuracy_score, confusion_matrix, f1_score, precision_recall_fscore_support

from .. import data
from ..distributed import World
from ..errors import UserError
from ..model import ModelConfig, build
from ..readers.decoding import load_image
from ..tools import evaluate, export, predict, task
from ..tools.trained_model import open_trained
from .conftest import load_exported

CPU = torch.device("cpu")


@pytest.fixture
def images_folder(tmp_path: Path) -> Path:
    """A folder with three built-in digits, one as a larger JPEG."""
    folder = tmp_path / "images"
    (folder / "more").mkdir(parents=True)
    images = data.load(data.DataConfig()).val.__getitems__([0, 1, 2])[0]
    for number, image in enumerate(images[:, 0].numpy()):
        Image.fromarray(image).save(folder / f"{number}.png")
    (folder / "2.png").unlink()
    Image.fromarray(images[2, 0].numpy()).resize((100, 100)).save(folder / "more" / "2.jpg")
    return folder


@pytest.mark.parametrize("classes", [3, 40])
def test_metrics_equal_those_of_scikit_learn(world: World, classes: int) -> None:
    generator = torch.Generator().manual_seed(0)
    labels, scores = (
        torch.randint(0, classes, (500,), generator=generator),
        torch.randn(500, classes, generator=generator),
    )
    scores[torch.arange(500), labels] += 1
    scores[:, 1] = -10  # a class that is never predicted
    names = tuple(f"name{number}" for number in range(classes))
    details = task.Details(data.Spec(1, 8, names, (0.0,), (1.0,)), CPU)
    net = SimpleNamespace(predict=lambda images: images)
    for part in range(0, 500, 200):
        details.add(net, (scores[part : part + 200], labels[part : part + 200]))
    values, table = details.result(world)
    true, predicted = labels.numpy(), scores.argmax(1).numpy()
    assert values["confusion"] == confusion_matrix(true, predicted).tolist()
    assert values["accuracy"] == pytest.approx(accuracy_score(true, predicted))
    assert values["f1"] == pytest.approx(f1_score(true, predicted, average="macro", zero_division=0))
    precision, recall, f1, count = precision_recall_fscore_support(true, predicted, zero_division=np.nan)
    rows = [values["classes"][name] for name in names]
    for key, theirs in (("precision", precision), ("recall", recall), ("f1", f1), ("count", count)):
        ours = [np.nan if row[key] is None else row[key] for row in rows]
        np.testing.assert_allclose(ours, theirs)
    assert values["classes"]["name1"]["precision"] is None
    if classes == 3:
        assert f"name0     {precision[0]:.4f}  {recall[0]:.4f}  {f1[0]:.4f}    {count[0]}" in table
        assert len({len(line) for line in table.rpartition("\n\n")[2].splitlines()}) == 1, "columns are not aligned"
    else:
        wrong = confusion_matrix(true, predicted)
        np.fill_diagonal(wrong, 0)
        worst = table.splitlines()[3].split()
        assert int(worst[0]) == wrong.max() == wrong[int(worst[3][4:]), int(worst[-1][4:])]


def test_evaluate_writes_metrics_and_a_plot(short_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    evaluate.main([str(short_run), "--device=cpu"])
    found = json.loads(next(short_run.glob("checkpoints/*/evaluation.json")).read_text())
    assert np.array(found["confusion"]).sum() == len(data.load(data.DataConfig()).val)
    assert "true|pred" in capsys.readouterr().out
    with Image.open(next(short_run.glob("checkpoints/*/evaluation.png"))) as image:
        assert image.width > 1000


def test_predict_classifies_new_images(
    short_run: Path, images_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    predict.main([str(short_run), str(images_folder), "--device=cpu"])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == [
        str(images_folder / name) for name in ("0.png", "1.png", "more/2.jpg")
    ]

    trained = open_trained(short_run, CPU)
    images, labels = data.load(data.DataConfig()).val.__getitems__([0, 1])
    scores = trained.net.predict(trained.prepare((images, labels), False, torch.default_generator)[0])
    expected = scores.softmax(1).topk(3)
    for name in ("a.csv", "a.json"):
        target = images_folder.parent / name
        options = ["--top=3", "--batch=2", f"--output={target}", "--device=cpu"]
        predict.main(
            [
                str(short_run),
                str(images_folder / "0.png"),
                str(images_folder / "1.png"),
                str(images_folder / "more"),
                *options,
            ]
        )
        if name == "a.csv":
            with target.open(newline="") as text:
                rows = list(csv.DictReader(text))
        else:
            rows = json.loads(target.read_text())
            assert [found["class"] for found in rows[0]["top"]] == [
                str(label) for label in expected.indices[0].tolist()
            ]
        assert len(rows) == 3
        for row, probabilities, classes in zip(rows, expected.values.tolist(), expected.indices.tolist(), strict=False):
            assert row["class"] == str(classes[0])
            assert float(row["probability"]) == pytest.approx(probabilities[0], rel=1e-4)
    assert "class_3" in (images_folder.parent / "a.csv").read_text().splitlines()[0]


def test_predict_rejects_invalid_input(short_run: Path, images_folder: Path) -> None:
    (images_folder / "bad.png").write_text("not an image")
    (images_folder.parent / "none").mkdir()
    cases = {
        "cannot read the image .*bad.png": [str(images_folder)],
        "nowhere.png .*No such file": [str(images_folder / "nowhere.png")],
        "none contains no image": [str(images_folder.parent / "none")],
        "must end with .csv or .json": [str(images_folder / "0.png"), "--output=a.txt"],
        "--top 0": [str(images_folder / "0.png"), "--top=0"],
        "give another --output": [str(images_folder / "0.png"), f"--output={images_folder}/nowhere/a.csv"],
    }
    for message, options in cases.items():
        with pytest.raises(SystemExit, match=message):
            predict.main([str(short_run), *options, "--device=cpu"])
    assert not list(images_folder.rglob(".partial*"))


@pytest.mark.parametrize(("form", "suffix"), [("torch", ".pt2"), ("onnx", ".onnx")])
def test_exported_model_returns_probabilities(short_run: Path, tmp_path: Path, form: str, suffix: str) -> None:
    export.main([str(short_run), f"--format={form}", f"--output={tmp_path}/model{suffix}"])
    images, labels = data.load(data.DataConfig()).val.__getitems__([0, 1, 2])
    probabilities = load_exported(tmp_path / f"model{suffix}")(images)
    trained = open_trained(short_run, CPU)
    scores = trained.net.predict(trained.prepare((images, labels), False, torch.default_generator)[0])
    torch.testing.assert_close(probabilities, scores.softmax(1))


def test_plot_marks_wrong_predictions(short_run: Path) -> None:
    trained = open_trained(short_run, CPU)
    found = data.load(data.DataConfig())
    images, _ = trained.prepare(found.val.__getitems__([0, 1]), False, torch.default_generator)
    predicted = trained.net.predict(images).argmax(1)
    figure = task.plot(trained, (images, torch.stack([predicted[0], (predicted[1] + 1) % 10])))
    assert [axes.get_title() for axes in figure.axes] == [
        str(predicted[0].item()),
        f"{predicted[1]}, not {(predicted[1] + 1) % 10}",
    ]


def test_unreadable_image_is_reported_in_one_line(images_folder: Path) -> None:
    with pytest.raises(UserError, match="fix or remove it") as caught:
        load_image(images_folder, 8, 1)
    assert "\n" not in str(caught.value)


def test_loss_of_blended_labels_is_the_weighted_loss() -> None:
    found = data.load(data.DataConfig())
    net = build(ModelConfig(), found.spec).eval()
    images, labels = data.Prepare(found.spec, data.DataConfig())(
        found.val.__getitems__(list(range(8))), False, torch.default_generator
    )
    own, others = F.one_hot(labels, 10).float(), F.one_hot(labels.roll(1), 10).float()
    with torch.no_grad():
        blended, metrics = net(images, 0.75 * own + 0.25 * others)
        expected = 0.75 * net(images, labels)[0] + 0.25 * net(images, labels.roll(1))[0]
        torch.testing.assert_close(blended, expected)
        assert metrics["accuracy"][0] == net(images, labels)[1]["accuracy"][0]
