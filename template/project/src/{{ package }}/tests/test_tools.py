"""What the tools for data and runs plot and write, and their errors."""

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from .. import data
from ..contracts import map_tensors
from ..errors import UserError
from ..tools import evaluate, export, report, show
from ..tools.run_record import RunRecord
from .conftest import SMALL, small

RUNS = [RunRecord(Path("a"), "a", [{"split": "train", "step": 1, "loss": 2.0}], "", {}, {})]


@pytest.mark.parametrize("options", [["--output", "a.png"], ["--show", *SMALL, "--output=a.png"]])
def test_data_are_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], options: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    show.main(options)
    said = capsys.readouterr().out
    if "\nno plot " in said:  # view.py is about other data
        return
    assert said.endswith("plot            a.png\n")
    assert Path("a.png").read_bytes().startswith(b"\x89PNG")


def test_input_far_from_normalized_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def no_figure(*place: str) -> None:
        raise UserError("left out here")

    class Shifted(data.Prepare):
        shift = 0.0

        def forward(self, *batch: Any) -> Any:
            prepared, shift = super().forward(*batch), self.shift * (not batch[1])  # in training, labels may be floats
            return map_tensors(lambda it: it + shift if it.is_floating_point() else it, prepared)

    monkeypatch.setattr(show, "take", no_figure)
    monkeypatch.setattr(data, "Prepare", Shifted)
    said = []
    for shift in (0.0, 100.0, math.nan):
        monkeypatch.setattr(Shifted, "shift", shift)
        show.show(small(), tmp_path / "a.png")
        said.append(capsys.readouterr().out)
    means, warnings = ([text.count(word) for text in said] for word in (" mean ", "\nwarning  "))
    assert means[0] == warnings[1] == warnings[2] >= warnings[0]
    show._print_statistics("batch[0]", torch.randn(1000, dtype=torch.float64))
    assert "warning" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--output"], "--output: expected one argument"),
        (["--out", "a.png"], "^error: there is no option --out; --help lists them"),
        (["--optim.nam", "adamw"], "^error: there is no option --optim.nam; did you mean optim.name?"),
        (["--output", "a.txt"], r"^error: --output a.txt: its name must end with .png$"),
        ([*SMALL, "--output", "no/a.png"], "^error: cannot write no/a.png .*: give another --output$"),
    ],
)
def test_show_refuses_bad_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        show.main(options)
    said = capfd.readouterr().err or str(ended.value)
    assert ended.value.code
    assert re.search(message, said)
    assert {path.name for path in tmp_path.iterdir()} <= {".cache"}


def test_outputs_of_an_exported_model_may_be_nested() -> None:
    def original(x: torch.Tensor) -> object:
        return {"best": x > 0, "all": [x, (x,)]}

    def exported(x: torch.Tensor) -> list[torch.Tensor]:
        return [x > 0, x, x + 1e-5]

    assert export.max_difference(original, exported, (torch.zeros(2),)) == pytest.approx(1e-5)
    with pytest.raises(UserError, match="differs from the original by up to 1"):
        export.max_difference(original, lambda x: [x < 1, x, x], (torch.zeros(2),))
    with pytest.raises(UserError, match="`predict` returns no tensors"):
        export.max_difference(lambda x: {}, lambda x: {}, (torch.zeros(2),))


@pytest.mark.parametrize(
    ("write", "way_out"),
    [
        (lambda target: report.draw(RUNS, target), "give another --output"),
        (lambda target: evaluate.write({"loss": 2.0}, target), "the metrics are printed above"),
    ],
)
def test_results_are_written_atomically(tmp_path: Path, write: Callable[[Path], None], way_out: str) -> None:
    write(tmp_path / "found.png")
    before = (tmp_path / "found.png").read_bytes()
    assert before
    (tmp_path / "taken.png").mkdir()
    with pytest.raises(UserError, match=rf"cannot write .*taken.png \(.+\): {way_out}"):
        write(tmp_path / "taken.png")
    assert {file.name for file in tmp_path.iterdir()} == {"found.png", "taken.png"}
