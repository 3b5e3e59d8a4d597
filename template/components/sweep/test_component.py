"""A sweep of a stand-in for the training command, which writes validations as a run does."""

import json
import sys
from pathlib import Path

import pytest
import yaml

pytest.importorskip("optuna", reason="needs optuna: pip install optuna")
from ..components import sweep

TRAIN = """
import json, pathlib, sys, time
name, lr = sys.argv[1], float(sys.argv[-1].split("=")[1])
folder = pathlib.Path("runs", name)
folder.mkdir(parents=True, exist_ok=True)
(folder / "starts").open("a").write("x")
for step in range(1, 4):
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"split": "val", "step": step, "score": -abs(lr - 0.3)}) + "\\n")
    time.sleep(float(sys.argv[2]))
"""


def command(
    seconds: float,
    *options: str,
) -> list[str]:
    """Return a sweep's arguments; the training pauses after each validation."""
    training = [sys.executable, "-c", TRAIN, "{name}", str(seconds)]
    return ["search.yaml", "--metric=score", *options, "--", *training]


@pytest.fixture(autouse=True)
def folder(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("search.yaml").write_text("optim.lr: {low: 0.001, high: 1.0, log: true}\n")
    return tmp_path


def test_best_options_are_written_as_a_config(folder: Path) -> None:
    sweep.main(command(0, "--trials=2"))
    sweep.main(command(0, "--trials=3"))  # the same study goes on
    scores = []
    for file in folder.glob("runs/*/metrics.jsonl"):
        scores.append(json.loads(file.read_text().splitlines()[-1])["score"])
    assert len(scores) == 3
    best = yaml.safe_load((folder / "runs/sweep/best.yaml").read_text())
    assert abs(best["optim.lr"] - 0.3) == pytest.approx(-max(scores))


def test_bad_trial_is_pruned_by_ending_its_process(
    capsys: pytest.CaptureFixture[str],
) -> None:
    sweep.main(command(0, "--trials=5"))
    # worse than all before
    Path("search.yaml").write_text("optim.lr: {low: 5.0, high: 9.0, log: true}\n")
    sweep.main(command(3600, "--trials=6"))
    assert "sweep-5 pruned" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("search", "options", "message"),
    [
        ("optim.lr: 3\n", [], "optim.lr needs a list of values, or low, high and log, and not 3"),
        ("optim.lr: {low: 1e-1, high: 1e-2}\n", [], "optim.lr needs a list of values"),
        ("- optim.lr\n", [], "a sweep needs options in its file"),
        ("optim.lr: [0.1]\n", ["--metric=f1"], "a validation has no f1: use one of score"),
    ],
)
def test_bad_input_is_a_line(
    search: str, options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("search.yaml").write_text(search)
    with pytest.raises(SystemExit):
        sweep.main(command(0, *options))
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith(f"error: {message}")
