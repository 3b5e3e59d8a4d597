"""Losses with Lightning equal those of plain PyTorch; the lowest version of Lightning works."""

import fcntl
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from engine import MakePackage, Package
from lightning_runs import IGNORED, LightningProject, column, rows
from matrix import EVERY, MODELS, ROOT
from program import Project, run_in

pytestmark = IGNORED
PIP_INSTALL = [
    sys.executable,
    "-m",
    "pip",
    "install",
    "--quiet",
]
STEPS = 200 if EVERY else 8
RISE = [] if EVERY else ["pct_start=0.3"]
"""1cycle needs some steps to rise: short runs have another `pct_start` than some recipes."""


def plain(
    p: Package,
    folder: Path,
    *options: str,
    ranks: int = 1,
) -> list[dict[str, Any]]:
    """Return the training rows of a run of plain PyTorch."""
    steps = [f"--train.steps={STEPS}", f"--train.eval_every={STEPS}"]
    rise = [f"--optim.{option}" for option in RISE]
    if ranks == 1:
        p.train_here(
            folder,
            *steps,
            *options,
            *rise,
        )
    else:
        p.finish(
            folder,
            *steps,
            *options,
            *rise,
            ranks=ranks,
        )
    return rows(folder)


def compare(
    folder: Path,
    expected: list[dict[str, Any]],
    tolerance: float,
) -> None:
    """Compare the rows of a run with Lightning."""
    assert column(folder, "step") == list(range(1, STEPS + 1))
    for key in ("step", "loss", "grad_norm", "lr"):
        values = [row[key] for row in expected]
        assert column(folder, key) == pytest.approx(values, rel=tolerance), key


def trainer(accumulate: int = 1) -> list[str]:
    """Return the same options for Lightning."""
    return [
        f"--trainer.max_steps={STEPS}",
        f"--trainer.val_check_interval={STEPS * accumulate}",
        "--trainer.num_sanity_val_steps=0",
        "--trainer.limit_val_batches=1",
        f"--trainer.accumulate_grad_batches={accumulate}",
        *(f"--model.{option}" for option in RISE),
    ]


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS if EVERY else ["mlp", "resnet"])
def test_losses_are_those_of_plain_pytorch(
    package: MakePackage,
    lightning: LightningProject,
    tmp_path: Path,
    model: str,
) -> None:
    expected = plain(package(model), tmp_path / "plain")
    lightning(model).run(tmp_path, *trainer(), every=STEPS)
    compare(tmp_path, expected, 1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ranks", "accumulate", "tolerance"),
    [(2, 2, 1e-3), *([(1, 4, 1e-4)] if EVERY else [])],
)
def test_losses_with_accumulation_and_ranks_are_those_of_plain_pytorch(
    package: MakePackage,
    lightning: LightningProject,
    tmp_path: Path,
    ranks: int,
    accumulate: int,
    tolerance: float,
) -> None:
    sizes = ["--train.batch_size=8", f"--train.gradient_accumulation_steps={accumulate}"]
    expected = plain(
        package("mlp"),
        tmp_path / "plain",
        *sizes,
        ranks=ranks,
    )
    options = [
        *trainer(accumulate),
        "--data.batch_size=8",
        f"--trainer.devices={ranks}",
        "--trainer.strategy=ddp",
    ]
    lightning("mlp").finish(
        tmp_path,
        *options,
        ranks=ranks,
        every=STEPS,
    )
    compare(tmp_path, expected, tolerance)


@pytest.fixture(scope="session")
def lowest(shared_folder: Path) -> Path:
    """A folder with the lowest version of Lightning that a project accepts, installed once."""
    requirements = (ROOT / "template/frameworks/lightning/requirements").read_text()
    (version,) = re.findall(r'"lightning>=(\d+\.\d+),', requirements)
    folder = shared_folder / "lowest-lightning"
    with open(f"{folder}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            environment = dict(os.environ)
            environment.pop("PIP_CONSTRAINT", None)
            command = [
                *PIP_INSTALL,
                "--no-deps",
                f"--target={folder}",
                f"lightning=={version}.0",
            ]
            subprocess.run(
                command,
                check=True,
                env=environment,
                capture_output=True,
            )
    return folder


@pytest.mark.test_all
@pytest.mark.slow
def test_lowest_version_trains_resumes_and_validates(
    project: Project,
    lowest: Path,
) -> None:
    """With warnings as errors, as in all rendered tests.

    The highest version is the one that is installed here.
    """
    folder = project("lightning", "mlp")
    search = {"PYTHONPATH": f"{lowest}{os.pathsep}{folder / 'src'}"}
    find = "from importlib.util import find_spec; print(find_spec('lightning').origin)"
    origin = run_in(
        folder,
        sys.executable,
        "-c",
        find,
        **search,
    ).stdout
    assert origin.startswith(str(lowest))
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "src/proj/tests/test_train.py",
    ]
    command += [] if EVERY else ["-k", "loss_falls"]
    done = run_in(folder, *command, **search)
    assert done.returncode == 0, done.stdout
