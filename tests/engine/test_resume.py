"""A run that was killed at any moment and resumed equals an uninterrupted one to the bit."""

import random
from pathlib import Path
from unittest import mock

import pytest
import torch
from engine import FIXED, MakePackage, Package, checkpoints, equal, rows, saved
from matrix import EVERY
from program import PROGRAMS
from warm import run_python, start_python

COMPONENTS = [(), *([("ema",)] if EVERY else [])]
"""`test_component_runs.py` kills a run with each component."""
LONG = ["--train.steps=300", "--train.eval_every=5", "--log.every=2", "--run.keep=3"]
SHORT = ["--train.steps=12", "--train.eval_every=4", "--log.every=3"]


def enabled(components: tuple[str, ...]) -> list[str]:
    return [f"--{name}.enabled=true" for name in components]


@pytest.mark.slow
@pytest.mark.parametrize("components", COMPONENTS)
def test_kill_at_random_moments_changes_nothing(
    package: MakePackage, tmp_path: Path, components: tuple[str, ...]
) -> None:
    p = package("mlp", *components)
    options = [*LONG, *enabled(components)]
    rng = random.Random(len(components))  # noqa: S311
    p.finish(tmp_path / "whole", *options)
    program = str(PROGRAMS / "signal_at_step.py")
    arguments = p.arguments(tmp_path / "killed", *options)
    for part in range(1, 7 if EVERY else 5):
        step = 34 * part + rng.randrange(34)
        delay = 0.03 * rng.random()
        run_python(
            p.root,
            program,
            "9",
            f"{step}",
            p.name,
            *arguments,
            DELAY=f"{delay}",
            status=-9,
        )
        assert checkpoints(tmp_path / "killed")
    p.finish(tmp_path / "killed", *options)
    assert equal(saved(tmp_path / "killed"), saved(tmp_path / "whole"))
    assert rows(tmp_path / "killed") == rows(tmp_path / "whole")


@pytest.mark.slow
@pytest.mark.parametrize("components", COMPONENTS)
def test_kill_at_a_file_operation_changes_nothing(
    package: MakePackage, tmp_path: Path, components: tuple[str, ...]
) -> None:
    """At opening, renaming and removing of files, sampled in `make test`."""
    p = package("mlp", *components)
    options = [*SHORT, *enabled(components), "--run.keep=1"]

    def train(number: int) -> str:
        fixed = [*FIXED, f"--run.dir={tmp_path / str(number)}"]
        arguments = [str(PROGRAMS / "kill_at.py"), f"{number}", p.name, *fixed, *options]
        return run_python(p.root, *arguments, status=-9 if number else 0).stdout

    operations = int(train(0).splitlines()[-1])
    assert operations > 20
    wanted = range(1, operations)
    for number in wanted if EVERY else random.Random(1).sample(wanted, 4):  # noqa: S311
        train(number)
        p.train_here(tmp_path / str(number), *options)
        assert equal(saved(tmp_path / str(number)), saved(tmp_path / "0")), number
        assert rows(tmp_path / str(number)) == rows(tmp_path / "0"), number


@pytest.mark.slow
def test_kill_of_one_of_two_ranks_ends_the_other_and_changes_nothing(
    p: Package, tmp_path: Path
) -> None:
    options = ["--train.steps=30", "--train.eval_every=5", "--train.batch_size=8"]
    p.finish(tmp_path / "whole", *options, ranks=2)
    arguments = p.arguments(tmp_path / "killed", *options)
    program = [
        str(PROGRAMS / "signal_at_step.py"),
        "9",
        "17",
        p.name,
    ]
    run = start_python(
        p.root,
        *program,
        *arguments,
        ranks=2,
    )
    done = run.finish()
    assert [process.exitcode for process in run.processes] == [1, -9]
    assert "Traceback" not in done.stderr
    assert saved(tmp_path / "killed")["step"] == 15
    p.finish(tmp_path / "killed", *options, ranks=2)
    assert equal(saved(tmp_path / "killed"), saved(tmp_path / "whole"))
    assert rows(tmp_path / "killed") == rows(tmp_path / "whole")


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", ["plain", "batch_norm"])
def test_resume_in_the_middle_of_an_epoch_equals_one_run(
    p: Package, tmp_path: Path, kind: str, workers: int
) -> None:
    options = [
        f"--model.kind={kind}",
        "--train.steps=8",
        "--train.eval_every=4",
        "--train.gradient_accumulation_steps=2",
    ]
    options += ["--train.batch_size=8", f"--loader.num_workers={workers}"]
    p.train_here(tmp_path / "whole", *options)
    (tmp_path / "part/a/checkpoints").mkdir(parents=True)
    checkpoints(tmp_path / "whole")[0].rename(tmp_path / "part/a/checkpoints/step-00000004")
    p.train_here(tmp_path / "part", *options)
    assert equal(saved(tmp_path / "part"), saved(tmp_path / "whole"))
    assert rows(tmp_path / "part") == rows(tmp_path / "whole")[4:], (
        "the rest, after the same validation"
    )


def test_other_hyperparameters_apply_after_a_resume_but_another_optimizer_is_refused(
    p: Package, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    p.train_here(tmp_path, "--train.steps=4")
    p.train_here(
        tmp_path, "--train.steps=6", "--optim.weight_decay=0.5", "--run.allow_changes=true"
    )
    assert [group["weight_decay"] for group in saved(tmp_path)["optimizer"]["param_groups"]] == [
        0.5,
        0.0,
    ]
    monkeypatch.setattr(
        p.component, "adamw", lambda model, cfg: torch.optim.SGD(model.parameters(), lr=0.1)
    )
    with pytest.raises(p.errors.UserError, match="was saved with AdamW, not SGD"):
        p.train_here(tmp_path, "--train.steps=8", "--run.allow_changes=true")


def test_error_in_validation_costs_no_training(p: Package, tmp_path: Path) -> None:
    options = ["--train.steps=6", "--train.eval_every=3"]
    p.train_here(tmp_path / "whole", *options)
    failing = mock.patch.object(p.train, "evaluate", side_effect=ZeroDivisionError)
    with failing, pytest.raises(ZeroDivisionError):
        p.train_here(tmp_path / "failed", *options)
    assert saved(tmp_path / "failed")["step"] == 3
    p.train_here(tmp_path / "failed", *options)
    assert equal(saved(tmp_path / "failed"), saved(tmp_path / "whole"))
