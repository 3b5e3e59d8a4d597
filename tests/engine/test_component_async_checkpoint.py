"""async-checkpoint: SIGKILL at file operations, a full disk on two ranks, tied weights."""

import json
import random
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from engine import FIXED, MakePackage, equal, rows, saved
from matrix import EVERY
from program import PROGRAMS
from warm import run_python

NAME = "async-checkpoint"
ASYNC = [
    "--async_checkpoint.enabled=true",
    "--train.steps=12",
    "--train.eval_every=4",
    "--run.keep=1",
]


def test_kill_at_a_file_operation_changes_nothing(tiny: MakePackage, tmp_path: Path) -> None:
    p = tiny(NAME)

    def train(number: int) -> str:
        options = [*FIXED, f"--run.dir={tmp_path / str(number)}", *ASYNC]
        arguments = [str(PROGRAMS / "kill_at.py"), f"{number}", p.name, *options]
        return run_python(p.root, *arguments, status=-9 if number else 0).stdout

    operations = int(train(0).splitlines()[-1])
    assert operations > 20
    wanted = range(1, operations - 2)  # their number differs a little between runs
    for number in wanted if EVERY else random.Random(3).sample(wanted, 4):  # noqa: S311
        train(number)
        best = (
            json.loads((tmp_path / f"{number}/a/checkpoints/best.json").read_text())
            if number > 40
            else {}
        )
        assert not best or (tmp_path / f"{number}/a/checkpoints/step-{best['step']:08d}").exists()
        p.train_here(tmp_path / str(number), *ASYNC)
        assert equal(saved(tmp_path / str(number)), saved(tmp_path / "0")), number
        assert rows(tmp_path / str(number)) == rows(tmp_path / "0"), number


@pytest.mark.parametrize("ends", ["steps=4", "steps=8"])
def test_checkpoint_that_cannot_be_written_ends_both_ranks_with_one_line(
    tiny: MakePackage, tmp_path: Path, ends: str
) -> None:
    (tmp_path / "a/checkpoints").mkdir(parents=True)
    (tmp_path / "a/checkpoints/.partial").touch()  # in the place of a folder
    run = tiny(NAME).start(
        tmp_path,
        *ASYNC,
        f"--train.{ends}",
        "--train.batch_size=4",
        ranks=2,
    )
    done = run.finish()
    assert [process.exitcode for process in run.processes] == [1, 1]
    # torchrun ends the second before it prints
    assert done.stderr.count("File exists") == 2, done.stderr
    assert done.stderr.count("\n") == 2
    assert not (tmp_path / "a/checkpoints/best.json").exists()


def test_two_ranks_train_as_without_it(tiny: MakePackage, tmp_path: Path) -> None:
    p = tiny(NAME)
    options = [*ASYNC, "--train.batch_size=4"]
    p.finish(tmp_path / "async", *options, ranks=2)
    p.finish(tmp_path / "plain", *options, "--async_checkpoint.enabled=false", ranks=2)
    for key in ("model", "optimizer", "step"):
        assert equal(saved(tmp_path / "async")[key], saved(tmp_path / "plain")[key])
    assert rows(tmp_path / "async") == rows(tmp_path / "plain")


def test_another_error_is_raised_and_that_of_the_save_is_printed(
    tiny: MakePackage,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    p = tiny(NAME)

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(p.checkpoint.Checkpoints, "write", fail)
    with pytest.raises(p.errors.UserError, match=r"the loss is inf .* at step 3"):
        p.train_here(tmp_path, *ASYNC, "--train.eval_every=2", "--model.kind=nan")
    assert capsys.readouterr().err.count("No space left on device") == 1


def test_monitor_that_is_no_metric_is_refused_at_the_first_validation(
    tiny: MakePackage, tmp_path: Path
) -> None:
    p = tiny(NAME)
    with pytest.raises(p.errors.UserError, match="train.monitor is accuracy"):
        p.train_here(tmp_path, *ASYNC, "--train.monitor=accuracy", "--train.monitor_mode=max")
    assert saved(tmp_path)["step"] == 4


def test_copy_shares_nothing_with_the_state_and_tied_weights_stay_tied(tiny: MakePackage) -> None:
    module = sys.modules[f"{tiny(NAME).components.__name__}.async_checkpoint"]
    weight = torch.randn(3, 4, 5, 6).to(memory_format=torch.channels_last)
    state: dict[str, Any] = {
        "model": {"a": weight, "b": weight.detach()},
        "list": [weight[0], {"numbers": [1, 2]}],
        "pair": (1, 2.0),
    }
    event, copied = module._copy_to_host(state, torch.device("cpu"))
    assert event is None
    assert equal(copied, state)
    assert copied["model"]["a"].data_ptr() == copied["model"]["b"].data_ptr()
    assert copied["model"]["a"].stride() == weight.stride()
    assert isinstance(copied["list"], list)
    weight.zero_()
    state["list"][1]["numbers"].append(3)
    assert copied["list"][0].any()
    assert copied["list"][1] == {"numbers": [1, 2]}
