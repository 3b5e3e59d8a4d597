"""Text classification tools: evaluate, predict and export.

Delete this file together with the example's tools/task.py: nothing else needs it.
"""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from sklearn.metrics import accuracy_score, confusion_matrix, f1_score, precision_recall_fscore_support

from .. import data
from ..distributed import World
from ..readers.subwords import encoder
from ..tools import evaluate, export, predict, task
from ..tools.trained_model import open_trained
from ..train import train
from .conftest import small

CPU = torch.device("cpu")
NEW = ["this was a good film", "dull, from the beginning to the end of it and again", "fine"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train a few steps on short reviews, and return the folder of the run."""
    folder = tmp_path_factory.mktemp("runs")
    words = ("good", "fine", "dull", "bad", "so-so", "mixed")
    rows = {
        "review": [f"this {index} was {words[index % 6]}" for index in range(120)],
        "stars": [("pos", "neg", "none")[index % 6 // 2] for index in range(120)],
    }
    pl.DataFrame(rows).write_csv(folder / "reviews.csv")
    own = [f"--data.path={folder}/reviews.csv", "--data.text=review", "--data.label=stars", "--data.vocabulary=300"]
    own += [f"--data.cache_dir={folder}/cache", f"--run.dir={folder}", "--run.name=a"]
    train(small(*own, "--train.steps=30"), World(0, 1, CPU))
    return folder / "a"


def probabilities(run: Path, texts: list[str]) -> torch.Tensor:
    """Of texts, one at a time and without padding."""
    trained = open_trained(run, CPU)
    encode = encoder(trained.spec.tokenizer, trained.spec.length)
    rows = []
    with torch.no_grad():
        for text in texts:
            tokens = torch.from_numpy(encode([text])[0]).long()[None]
            rows.append(trained.net.predict(tokens, tokens >= 0).softmax(1))
    return torch.cat(rows)


def test_metrics_equal_those_of_scikit_learn(world: World) -> None:
    classes = 3
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(0, classes, (500,), generator=generator)
    scores = torch.randn(500, classes, generator=generator)
    scores[torch.arange(500), labels] += 1
    scores[:, 1] = -10  # a class that is never predicted
    names = tuple(f"name{number}" for number in range(classes))
    details = task.Details(data.Spec(9, 8, names, ""), CPU)
    net = SimpleNamespace(predict=lambda tokens, mask: tokens)
    for part in range(0, 500, 200):
        details.add(net, (scores[part : part + 200], scores, labels[part : part + 200]))
    values, table = details.result(world)
    true, predicted = labels.numpy(), scores.argmax(1).numpy()
    assert values["confusion"] == confusion_matrix(true, predicted).tolist()
    assert values["accuracy"] == pytest.approx(accuracy_score(true, predicted))
    assert values["f1"] == pytest.approx(f1_score(true, predicted, average="macro", zero_division=0))
    precision, recall, f1, count = precision_recall_fscore_support(true, predicted, zero_division=np.nan)
    for key, theirs in (("precision", precision), ("recall", recall), ("f1", f1), ("count", count)):
        ours = [np.nan if values["classes"][name][key] is None else values["classes"][name][key] for name in names]
        np.testing.assert_allclose(ours, theirs)
    assert "true|pred" in table


def test_evaluate_writes_metrics_and_a_plot(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    evaluate.main([str(run), "--device=cpu"])
    found = json.loads(next(run.glob("checkpoints/*/evaluation.json")).read_text())
    assert np.array(found["confusion"]).sum() == 12
    assert "true|pred" in capsys.readouterr().out
    assert next(run.glob("checkpoints/*/evaluation.png")).read_bytes().startswith(b"\x89PNG")


def test_plot_marks_wrong_predictions(run: Path) -> None:
    trained = open_trained(run, CPU)
    encode = encoder(trained.spec.tokenizer, 32)
    batch = trained.prepare((*task.as_batch(encode(NEW), 32), torch.zeros(3)), False, torch.default_generator)
    best = trained.net.predict(*batch[:2]).argmax(1)
    figure = task.plot(trained, (*batch[:2], torch.stack([best[0], (best[1] + 1) % 3, best[2]])))
    labels = [label for label in figure.axes[0].texts if label.get_position()[0] == 0]
    assert [label.get_color() for label in labels] == ["black", "crimson", "black"]
    assert f", not {trained.spec.classes[(best[1] + 1) % 3]}" in labels[1].get_text()


def test_predict_classifies_new_texts(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run.parent / "reviews.csv").rename(tmp_path / "reviews.csv")  # only the checkpoint is needed
    expected, classes = probabilities(run, NEW), open_trained(run, CPU).spec.classes
    best = expected.topk(3)
    frame = pl.DataFrame({"id": [1, 2], "review": NEW[1:]})
    frame.write_ndjson(tmp_path / "new.jsonl")
    inputs = [str(run), f"--text={NEW[0]}", str(tmp_path / "new.jsonl"), "--device=cpu", "--batch=2"]
    readers: dict[str, Any] = {".csv": pl.read_csv, ".parquet": pl.read_parquet, ".jsonl": pl.read_ndjson}
    for suffix, reader in readers.items():
        predict.main([*inputs, "--top=3", f"--output={tmp_path}/out{suffix}"])
        found = reader(tmp_path / f"out{suffix}")
        assert found["review"].to_list() == NEW
        assert found["id"].to_list() == [None, 1, 2]
        for rank, end in enumerate(("", "_2", "_3")):
            assert found[f"class{end}"].to_list() == [classes[index] for index in best.indices[:, rank].tolist()]
            np.testing.assert_allclose(found[f"probability{end}"], best.values[:, rank], rtol=1e-4)
    capsys.readouterr()
    predict.main(inputs)
    printed = capsys.readouterr().out
    (tmp_path / "reviews.csv").rename(run.parent / "reviews.csv")
    assert all(text in printed for text in NEW)
    assert not list(tmp_path.glob(".partial*"))


def test_predict_rejects_invalid_input(run: Path, tmp_path: Path) -> None:
    def write(name: str, **columns: list[Any]) -> str:
        pl.DataFrame(columns).write_csv(tmp_path / name)
        return str(tmp_path / name)

    good = write("good.csv", review=["fine"])
    cases = {
        "no text: give --text": [],
        "nowhere.csv does not exist": [str(tmp_path / "nowhere.csv")],
        "has no column review; it has text": [write("other.csv", text=["fine"])],
        "has no text in row 2 of column review": [write("gap.csv", review=["fine", None, "x"], more=[1, 2, 3])],
        "already has a column class": [write("taken.csv", review=["fine"], **{"class": ["x"]})],
        "must end with .csv, .parquet, .jsonl": [good, "--output=a.txt"],
        "cannot write": [good, f"--output={tmp_path}/nowhere/a.csv"],
        "--top 0": [good, "--top=0"],
    }
    for message, options in cases.items():
        with pytest.raises(SystemExit, match=message):
            predict.main([str(run), *options, "--device=cpu"])


@pytest.mark.parametrize("kind", ["torch", "onnx"])
def test_exported_model_equals_the_original(run: Path, kind: str, tmp_path: Path) -> None:
    """With the tokenizer next to it, it classifies texts."""
    (tmp_path / "out").mkdir()
    export.main([str(run), f"--format={kind}", f"--output={tmp_path}/out/model"])
    tokenizer = (tmp_path / "out/tokenizer.json").read_text()
    encoded = task.as_batch(encoder(tokenizer, 32)(NEW), 32)
    if kind == "torch":
        found = torch.export.load(tmp_path / "out/model").module()(*encoded).detach()
    else:
        import onnxruntime

        session = onnxruntime.InferenceSession(str(tmp_path / "out/model"), providers=["CPUExecutionProvider"])
        names = [entry.name for entry in session.get_inputs()]
        feed = {name: part.numpy() for name, part in zip(names, encoded, strict=True)}
        found = torch.from_numpy(session.run(None, feed)[0])
    torch.testing.assert_close(found, probabilities(run, NEW), rtol=1e-3, atol=1e-4)
