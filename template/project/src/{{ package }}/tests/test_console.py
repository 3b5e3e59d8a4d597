"""What a run prints is within 80 columns, and starts before torch is imported."""

import re
import subprocess
import sys

import pytest

from ..console import Console
from .conftest import PACKAGE
from .terminal import screen

WITHOUT_TORCH = "import runpy, sys; sys.modules['torch'] = None; runpy.run_module('{}', run_name='__main__')"


def run_without_torch(*options: str) -> subprocess.CompletedProcess[str]:
    """Start the training program where torch cannot be imported."""
    command = [sys.executable, "-c", WITHOUT_TORCH.format(f"{PACKAGE}.train"), *options]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_something_is_printed_before_torch_is_imported() -> None:
    done = run_without_torch()
    assert done.stdout.startswith("starting: importing torch")
    assert "torch" in done.stderr.splitlines()[-1]
    assert run_without_torch("--print_config").stdout == "", "stdout is a YAML file"


def test_help_has_a_line_for_each_option_and_does_not_import_torch() -> None:
    done = run_without_torch("--help")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert "  --optim.lr                0.001     float above 0" in lines
    assert any(re.fullmatch(r"  --run.device +auto +auto, accelerator, cpu, cuda, mps, xpu", line) for line in lines)
    section = run_without_torch("--help=optim").stdout
    assert "  --optim.clip: float above 0, null (default 1.0)\n      Maximum global gradient norm" in section
    assert "run.dir" not in section
    wrong = run_without_torch("--help", "optm")
    assert (wrong.returncode, wrong.stderr) == (2, "error: no section or option optm; did you mean optim?\n")


@pytest.mark.parametrize("option", ["--help", "--help=optim", "--print_config"])
def test_one_rank_answers_a_question(option: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    done = run_without_torch(option)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("monitor", ["loss", "a_metric_whose_name_is_much_too_long_for_a_column"])
def test_table_is_within_80_columns(monitor: str, capsys: pytest.CaptureFixture[str]) -> None:
    console = Console(True, 10_000_000, 7, "samples", monitor)
    row = {"loss": -1.23456e-12, "mae": 0.1, monitor: 1.23456e12, "lr": 1e-12, "samples_per_second": 9_999_999.0}
    for step in range(1, 22):
        console.row("train", 9_999_979 + step, row)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0].split()[:3] == ["epoch", "step", "loss"]
    assert [number for number, line in enumerate(lines) if line == lines[0]] == [0, 21], "the names are repeated"
    rate = "9,999,999"
    assert all(len(line.split()) == 7 and line.endswith(rate) for line in lines[1:21])
    assert "-1.235e-12" in lines[1] if monitor != "loss" else "1.235e+12" in lines[1]


def test_other_ranks_print_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    console = Console(False, 10, 5, "samples", "loss")
    console.facts({"device": "cpu"})
    console.row("train", 1, {"loss": 1.0})
    assert capsys.readouterr().out == ""


def test_screen_of_the_tests_is_that_of_a_terminal() -> None:
    assert screen("abc\rx\r\nd\r\x1b[Ke\r\n" + 81 * "f") == ["xbc", "e", 80 * "f", "f"]
