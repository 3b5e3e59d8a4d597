"""Losses with Lightning equal those of plain PyTorch, for all models; and the lowest version of Lightning works."""

import fcntl
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from engine import MakePackage, Package
from lightning_runs import IGNORED, LightningProject, rows
from matrix import EVERY, MODELS, ROOT
from program import Project, run_in

pytestmark = [pytest.mark.filterwarnings(found) for found in IGNORED]
STEPS, RISE = (200, []) if EVERY else (8, ["0.3"])
"""1cycle needs some steps to rise, so that short runs have another `pct_start` than some recipes."""


@pytest.fixture(autouse=True)
def as_before() -> Any:
    """Undo what Lightning sets for the whole process."""
    with mock.patch.dict(os.environ):
        yield


def plain(p: Package, folder: Path, *options: str, ranks: int = 1) -> list[dict[str, Any]]:
    """Return the training rows of a run of plain PyTorch."""
    fixed = [f"--train.steps={STEPS}", f"--train.eval_every={STEPS}", *options]
    fixed += [f"--optim.pct_start={value}" for value in RISE]
    if ranks == 1:
        p.train_here(folder, *fixed)
    else:
        p.finish(folder, *fixed, ranks=ranks)
    return rows(folder)


def compare(found: list[dict[str, Any]], expected: list[dict[str, Any]], tolerance: float) -> None:
    assert (
        [row["step"] for row in found]
        == [row["step"] for row in expected]
        == list(range(1, STEPS + 1))
    )
    for key in ("loss", "grad_norm", "lr"):
        assert [row[key] for row in found] == pytest.approx(
            [row[key] for row in expected], rel=tolerance
        ), key


def trainer(accumulate: int = 1) -> list[str]:
    """Return the same options for Lightning."""
    found = {
        "max_steps": STEPS,
        "val_check_interval": STEPS * accumulate,
        "num_sanity_val_steps": 0,
    }
    found |= {"limit_val_batches": 1, "accumulate_grad_batches": accumulate}
    return [f"--trainer.{name}={value}" for name, value in found.items()] + [
        f"--model.pct_start={it}" for it in RISE
    ]


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS if EVERY else ["mlp", "resnet"])
def test_losses_are_those_of_plain_pytorch(
    package: MakePackage, lightning: LightningProject, tmp_path: Path, model: str
) -> None:
    expected = plain(package(model), tmp_path / "plain")
    lightning(model).run(tmp_path, *trainer(), every=STEPS)
    compare(rows(tmp_path), expected, 1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ranks", "accumulate", "tolerance"), [(2, 2, 1e-3), *([(1, 4, 1e-4)] if EVERY else [])]
)
def test_losses_with_accumulation_and_ranks_are_those_of_plain_pytorch(
    package: MakePackage,
    lightning: LightningProject,
    tmp_path: Path,
    ranks: int,
    accumulate: int,
    tolerance: float,
) -> None:
    given = ["--train.micro_batch=8", f"--train.accumulate={accumulate}"]
    expected = plain(package("mlp"), tmp_path / "plain", *given, ranks=ranks)
    options = [
        *trainer(accumulate),
        "--data.batch_size=8",
        f"--trainer.devices={ranks}",
        "--trainer.strategy=ddp",
    ]
    lightning("mlp").finish(tmp_path, *options, ranks=ranks, every=STEPS)
    compare(rows(tmp_path), expected, tolerance)


@pytest.fixture(scope="session")
def lowest(shared_folder: Path) -> Path:
    """A folder with the lowest version of Lightning that a project accepts, installed once."""
    (version,) = re.findall(
        r'"lightning>=([\d.]+)', (ROOT / "template/frameworks/lightning/requirements").read_text()
    )
    folder = shared_folder / "lowest-lightning"
    with open(f"{folder}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            wanted = (
                f"lightning=={version}.0" if version.count(".") == 1 else f"lightning=={version}"
            )
            command = [
                sys.executable,
                "-m",
                "pip",
                "install",
                "--quiet",
                "--no-deps",
                "--target",
                str(folder),
                wanted,
            ]
            environment = {
                key: value for key, value in os.environ.items() if key != "PIP_CONSTRAINT"
            }
            subprocess.run(command, check=True, env=environment, capture_output=True)
    return folder


@pytest.mark.test_all
@pytest.mark.slow
def test_lowest_version_trains_resumes_and_validates(project: Project, lowest: Path) -> None:
    """With warnings as errors, as in all rendered tests.

    The highest version is the one that is installed here.
    """
    folder = project("lightning", "mlp")
    search = {"PYTHONPATH": f"{lowest}{os.pathsep}{folder / 'src'}"}
    find = "from importlib.util import find_spec; print(find_spec('lightning').origin)"
    assert run_in(folder, sys.executable, "-c", find, **search).stdout.startswith(str(lowest))
    chosen = "" if EVERY else "loss_falls"
    command = [
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "src/proj/tests/test_train.py",
        "-k",
        chosen,
    ]
    done = run_in(folder, sys.executable, *command, **search)
    assert done.returncode == 0, done.stdout
