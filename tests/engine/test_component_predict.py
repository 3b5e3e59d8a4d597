"""Predictions of each model and for own files, in the units of the data."""

import csv
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from engine import MakePackage, Package
from matrix import tiers
from PIL import Image
from tokenizers import Tokenizer

SHORT = ["--train.steps=2", "--train.eval_every=2", "--train.batch_size=16"]
CLOSE: Any = {"rtol": 1e-4, "atol": 1e-5}
"""Of outputs in fp32 of batches of other shapes, whose kernels add in another order."""


def trained(
    package: MakePackage,
    folder: Path,
    model: str,
    *options: str,
) -> Package:
    p: Package = package(model, "predict")
    p.train_here(folder, *SHORT, *options)
    return p


def start(
    p: Package,
    folder: Path,
    *arguments: object,
) -> list[dict[str, str]]:
    """Predict, and return the table, if one was written."""
    command = import_module(f"{p.name}.components.predict")
    command.main(
        [
            str(folder / "a"),
            *map(str, arguments),
            "--device=cpu",
        ]
    )
    file = folder / "a/predictions/predictions.csv"
    return list(csv.DictReader(file.read_text().splitlines())) if file.exists() else []


def outputs(p: Package, folder: Path) -> tuple[Any, torch.Tensor, torch.Tensor]:
    """Return the spec, what the best weights predict for the validation set, and the targets."""
    cfg, model, val_set, spec = p.evaluate.load_run(folder / "a", torch.device("cpu"))
    whole = val_set.__getitems__(list(range(len(val_set))))
    *inputs, targets = p.data.Prepare(spec, cfg.data)(
        whole,
        False,
        torch.Generator(),
    )
    with torch.inference_mode():
        return spec, model.eval().predict(*inputs), targets


def probabilities(row: dict[str, str], classes: Iterable[object]) -> list[float]:
    return [float(row[f"p({name})"]) for name in classes]


def assert_likeliest(classes: torch.Tensor, logits: torch.Tensor) -> None:
    """Check that these classes have the largest logits; of two that are close, it may be either."""
    chosen = logits.gather(1, classes.unsqueeze(1)).squeeze(1)
    torch.testing.assert_close(chosen, logits.amax(1), **CLOSE)


@pytest.mark.parametrize("model", tiers(["mlp"], ["resnet", "bert"]))
def test_table_has_the_probabilities(package: MakePackage, tmp_path: Path, model: str) -> None:
    p = trained(package, tmp_path, model)
    table = start(p, tmp_path)
    spec, logits, targets = outputs(p, tmp_path)
    found = torch.tensor([probabilities(row, spec.classes) for row in table])
    torch.testing.assert_close(found, logits.softmax(1), **CLOSE)
    assert_likeliest(torch.tensor([spec.classes.index(row["predicted"]) for row in table]), logits)
    assert [row["label"] for row in table] == [spec.classes[number] for number in targets]


def test_numbers_have_the_unit_of_the_table(package: MakePackage, tmp_path: Path) -> None:
    p = trained(package, tmp_path, "mlp", "--data.builtin=diabetes")
    table = start(p, tmp_path)
    _, predicted, _ = outputs(p, tmp_path)
    assert [float(row["predicted"]) for row in table] == pytest.approx(predicted.tolist(), rel=1e-4)
    targets = [float(row["target"]) for row in table]
    assert 25 <= min(targets) < max(targets) <= 346
    assert targets == pytest.approx([round(target) for target in targets], abs=1e-3)


def test_own_table_is_read_with_the_statistics_of_the_training(
    package: MakePackage, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same rows in another order, without the target, have the same predictions."""
    generator = np.random.default_rng(0)
    frame = pd.DataFrame(
        {"x": generator.normal(5, 2, 200), "kind": generator.choice(["a", "b", "c"], 200)}
    )
    frame["y"] = generator.permutation(200) + 0.5
    frame.loc[::7, "x"] = np.nan
    frame.to_csv(tmp_path / "all.csv", index=False)
    p = trained(package, tmp_path, "mlp", f"--data.path={tmp_path}/all.csv", "--data.target=y")
    by_target = {
        round(float(row["target"]), 1): float(row["predicted"]) for row in start(p, tmp_path)
    }
    new = frame[frame["y"].round(1).isin(by_target)].iloc[::-1]
    new.drop(columns="y").to_csv(tmp_path / "new.csv", index=False)
    (tmp_path / "all.csv").unlink()
    table = start(p, tmp_path, tmp_path / "new.csv")
    assert 20 < len(table) == len(new) < 60
    assert "target" not in table[0]
    expected = [by_target[target] for target in new["y"].round(1)]
    assert [float(row["predicted"]) for row in table] == pytest.approx(expected, rel=1e-4)
    assert capsys.readouterr().err == ""
    file = tmp_path / "other.csv"
    new.assign(x=np.nan, kind=["z", *new["kind"][1:]]).to_csv(file, index=False)
    start(p, tmp_path, file)
    assert capsys.readouterr().err.splitlines() == [
        f"{file}: kind: 1 of {len(new)} rows have no category that the run knows",
        f"{file}: x: no row has a number",
    ]


def test_forecasts_continue_the_series_in_its_unit(package: MakePackage, tmp_path: Path) -> None:
    series = pd.DataFrame({"load": 100 + 7 * np.sin(np.arange(400) / 5), "wind": np.arange(400.0)})
    series.to_csv(tmp_path / "series.csv", index=False)
    sizes = [
        "--data.kind=series",
        f"--data.path={tmp_path}/series.csv",
        "--data.window=16",
        "--data.horizon=4",
    ]
    # the forecast stays the last value
    p = trained(package, tmp_path, "lstm", *sizes, "--optim.lr=1e-9")
    table = start(p, tmp_path)
    assert len(table) == 4 * (80 + 16 - 16 - 4 + 1)
    assert [float(table[0][f"{name} (true)"]) for name in series] == pytest.approx(
        [*series.iloc[320]], rel=1e-5
    )
    assert [float(table[3][f"{name}"]) for name in series] == pytest.approx(
        [*series.iloc[319]], rel=1e-5
    )
    table = start(p, tmp_path, tmp_path / "series.csv")
    assert [row["step"] for row in table] == ["1", "2", "3", "4"]
    assert [float(table[3][f"{name}"]) for name in series] == pytest.approx(
        [*series.iloc[-1]], rel=1e-5
    )


def test_masks_have_the_values_of_the_training_and_the_size_of_own_images(
    package: MakePackage, tmp_path: Path
) -> None:
    p = trained(package, tmp_path, "unet")
    table = start(p, tmp_path)
    spec, logits, _ = outputs(p, tmp_path)
    values = torch.tensor([int(name) for name in spec.classes])
    masks = []
    for row in table[:5]:
        with Image.open(tmp_path / "a/predictions" / row["mask"]) as image:
            masks.append(torch.tensor(np.array(image)))
    found = torch.stack(masks).unsqueeze(1) == values.view(-1, 1, 1)
    assert found.sum(1).eq(1).all(), "each pixel has the value of a class"
    assert_likeliest(found.long().argmax(1), logits[:5])
    (tmp_path / "new").mkdir()
    Image.new("RGB", (50, 20), "white").save(tmp_path / "new/wide.png")
    (row,) = start(p, tmp_path, tmp_path / "new")
    with Image.open(tmp_path / "a/predictions" / row["mask"]) as image:
        assert image.size == (50, 20)


@pytest.mark.parametrize("model", tiers(["resnet"], ["vit"]))
def test_own_images_have_the_predictions_of_the_same_samples(
    package: MakePackage, tmp_path: Path, model: str
) -> None:
    p = trained(package, tmp_path, model)
    of_validation = start(p, tmp_path)[:3]
    images, _ = p.data.load(p.data.DataConfig())[1].__getitems__([0, 1, 2])
    for number, image in enumerate(images):
        Image.fromarray(image[0].numpy()).save(tmp_path / f"{number}.png")
    table = start(
        p,
        tmp_path,
        *(tmp_path / f"{number}.png" for number in range(3)),
    )
    for row, other in zip(table, of_validation, strict=True):
        found = probabilities(row, range(10))
        assert found == pytest.approx(probabilities(other, range(10)), rel=1e-4)
        assert found[int(row["predicted"])] == max(found)


def test_own_images_are_read_as_in_the_training(
    package: MakePackage, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In folders with other files as well: transparent images, whose hidden colors do not count."""
    random = np.random.default_rng(0)
    for number in range(40):
        file = tmp_path / "photos" / f"class{number % 2}" / f"{number}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(random.integers(0, 256, (12, 12, 4), np.uint8), "RGBA").save(file)
    (tmp_path / "photos/class0/notes.txt").touch()
    (tmp_path / "photos/class0/._1.png").touch()
    own = [f"--data.path={tmp_path}/photos", "--data.size=8", "--train.batch_size=8"]
    p = trained(package, tmp_path, "resnet", *own)
    _, _, val_set, _ = p.evaluate.load_run(tmp_path / "a", torch.device("cpu"))
    of_validation = start(p, tmp_path)
    table = {row["sample"]: row for row in start(p, tmp_path, tmp_path / "photos")}
    assert len(table) == 40
    for file, row in zip(val_set.images, of_validation, strict=True):
        found = table[str(file)]
        assert float(found["p(class0)"]) == pytest.approx(float(row["p(class0)"]), rel=1e-4)
    file.write_bytes(file.read_bytes()[:60])
    capsys.readouterr()
    with pytest.raises(SystemExit):
        start(p, tmp_path, file)
    assert capsys.readouterr().err.startswith(f"error: cannot read the image {file} (")


def test_own_texts_have_the_predictions_of_the_same_samples(
    package: MakePackage, tmp_path: Path
) -> None:
    rows = []
    for number in range(40):
        for kind in ("cat", "dog"):
            rows.append({"text": f"the {kind} of number {number}", "label": kind})
    pd.DataFrame(rows).to_csv(tmp_path / "all.csv", index=False)
    p = trained(package, tmp_path, "bert", f"--data.path={tmp_path}/all.csv", "--data.length=16")
    of_all = start(p, tmp_path, tmp_path / "all.csv")
    assert [row["sample"] for row in of_all] == [row["text"] for row in rows]
    shares = {row["sample"]: float(row["p(cat)"]) for row in of_all}
    _, _, val_set, spec = p.evaluate.load_run(tmp_path / "a", torch.device("cpu"))
    tokens, *_ = val_set.__getitems__([*range(len(val_set))])
    texts = Tokenizer.from_str(spec.tokenizer).decode_batch(tokens.tolist())
    found = [float(row["p(cat)"]) for row in start(p, tmp_path)]
    assert found == pytest.approx([shares[text.strip()] for text in texts], rel=1e-4)


@pytest.mark.parametrize("model", tiers(["vae"], ["diffusion"]))
def test_samples_are_a_grid(package: MakePackage, tmp_path: Path, model: str) -> None:
    p = trained(package, tmp_path, model)
    start(p, tmp_path, "--count=5")
    with Image.open(tmp_path / "a/predictions/samples.png") as image:
        assert image.size == (3 * 66, 2 * 66)
        assert image.mode == "L"
    with pytest.raises(SystemExit):
        start(p, tmp_path, "photo.png")


@pytest.mark.parametrize("model", tiers(["gpt"], ["lstm"]))
def test_text_continues_the_prompt(
    package: MakePackage, tmp_path: Path, model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    p = trained(package, tmp_path, model)
    capsys.readouterr()
    start(p, tmp_path, "--prompt=", "--tokens=1")
    capsys.readouterr()
    start(p, tmp_path, "--prompt=import ", "--tokens=150", "--temperature=0")
    said = capsys.readouterr().out
    assert said.startswith("import ")
    _, model_of_run, _, _ = p.evaluate.load_run(tmp_path / "a", torch.device("cpu"))
    tokens = list(b"import ")
    for _ in range(5):
        tokens.append(int(model_of_run.eval().predict(torch.tensor([tokens]))[0, -1].argmax()))
    assert said.startswith(bytes(tokens).decode(errors="replace"))


def test_own_data_module_that_does_not_fit_is_named(
    package: MakePackage,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Predictions for the validation set need no function of data.py but those of the contract."""
    p = trained(package, tmp_path, "mlp")
    monkeypatch.delattr(p.data, "read_table")
    assert start(p, tmp_path)
    capsys.readouterr()
    with pytest.raises(SystemExit):
        start(p, tmp_path, tmp_path / "new.csv")
    message = "components/predict_data.py does not fit data.py: module "
    assert capsys.readouterr().err.startswith(f"error: {message}")


@pytest.mark.parametrize("change", ["no column", "no rows", "separators at the end of rows"])
def test_own_table_with_defects(
    package: MakePackage, tmp_path: Path, change: str, capsys: pytest.CaptureFixture[str]
) -> None:
    p = trained(package, tmp_path, "mlp")
    names = list(p.data.load(p.data.DataConfig())[2].numeric)
    frame = pd.DataFrame({name: np.arange(3.0) + number for number, name in enumerate(names)})
    frame.to_parquet(tmp_path / "new.PARQUET")
    expected = start(p, tmp_path, tmp_path / "new.PARQUET")
    text = frame.drop(columns=names[3] if change == "no column" else []).head(
        0 if change == "no rows" else 3
    )
    lines = text.to_csv(index=False).splitlines()
    (tmp_path / "new.csv").write_text("\n".join([lines[0], *(f"{line}," for line in lines[1:])]))
    if change.startswith("no"):
        with pytest.raises(SystemExit):
            start(p, tmp_path, tmp_path / "new.csv")
        why = "no rows"
        if change == "no column":
            why = f"no column {names[3]!r}, which the model needs"
        assert capsys.readouterr().err == f"error: {tmp_path}/new.csv has {why}\n"
    else:
        assert start(p, tmp_path, tmp_path / "new.csv") == expected
