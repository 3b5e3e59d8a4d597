"""Losses with Lightning equal those of plain PyTorch; the lowest version of Lightning works."""

import math
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from counted import BATCH, UNEVEN, check, check_row, expected, gradients, options
from engine import TINY, MakePackage, Package, summary
from lightning_runs import IGNORED, LightningProject, column, rows, saved
from lightning_runs import Project as WithLightning
from matrix import EVERY, MODELS, ROOT
from program import PROGRAMS, Project, once, run_in
from warm import run_python

pytestmark = IGNORED
STEPS = 20 if EVERY else 8
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
        "--trainer.check_val_every_n_epoch=null",  # the interval may be longer than an epoch
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


@pytest.fixture(scope="module")
def tiny(lightning: LightningProject, tmp_path_factory: pytest.TempPathFactory) -> WithLightning:
    """The small problems of `tests/support/tiny/`."""
    mlp = lightning("mlp")
    root = tmp_path_factory.mktemp("tiny-lightning") / "tiny-lightning"
    shutil.copytree(mlp.root, root, ignore=shutil.ignore_patterns("__pycache__"))
    copy = WithLightning(root)
    (root / "src" / mlp.name).rename(root / "src" / copy.name)
    for module in ("data.py", "model.py"):
        shutil.copy(TINY / module, root / "src" / copy.name)
    recipe = root / "configs/default.yaml"
    config = yaml.safe_load(recipe.read_text())
    for name in ("size", "dropout"):
        del config["model"][name]
    recipe.write_text(yaml.safe_dump(config))
    sys.path.insert(0, str(root / "src"))
    return copy


def one_step(
    counts: list[int],
    ranks: int,
    parts: int,
    *more: str,
) -> list[str]:
    """Return the options of one step that is divided like this."""
    return [
        *(f"--data.{name}={value}" for name, value in options(counts).items()),
        f"--data.batch_size={BATCH // ranks // parts}",
        "--model.dropout=0",
        "--trainer.max_steps=1",
        "--trainer.val_check_interval=1",
        f"--trainer.accumulate_grad_batches={parts}",
        "--trainer.gradient_clip_val=null",
        *more,
    ]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["counted", "counted_on_host"])
@pytest.mark.parametrize(
    ("ranks", "parts"),
    [
        (1, 1),
        (1, 4),
        (2, 1),
        (2, 4),
    ],
)
def test_gradient_of_a_step_is_that_of_the_mean_over_all_that_counts(
    tiny: WithLightning,
    tmp_path: Path,
    kind: str,
    ranks: int,
    parts: int,
) -> None:
    several = [f"--trainer.devices={ranks}", "--trainer.strategy=ddp"] if ranks > 1 else []
    step = one_step(
        UNEVEN,
        ranks,
        parts,
        f"--model.kind={kind}",
        *several,
    )
    printed = tiny.finish(
        tmp_path,
        *step,
        ranks=ranks,
        every=1,
    )
    wanted = expected(tiny, UNEVEN)
    check(gradients(saved(tmp_path)["optimizer_states"][0]), wanted)
    check_row(rows(tmp_path)[0], wanted)
    assert all(math.isnan(row["loss"]) for row in rows(tmp_path, "val")), "nothing counts"
    line = "val/loss is nan in the validation of step 1\n"
    assert printed.count(line) == 1
    assert [file.name for file in (tmp_path / "a/checkpoints").iterdir()] == ["last.ckpt"]
    assert summary(tmp_path)["best"] is None


def test_clipping_sees_the_gradient_of_the_step(tiny: WithLightning, tmp_path: Path) -> None:
    wanted = expected(tiny, UNEVEN)
    limit = f"--trainer.gradient_clip_val={wanted.norm / 2}"
    step = one_step(
        UNEVEN,
        1,
        4,
        "--model.kind=counted",
        limit,
    )
    tiny.run(tmp_path, *step, every=1)
    clipped = wanted._replace(gradients=[part / 2 for part in wanted.gradients])
    check(
        gradients(saved(tmp_path)["optimizer_states"][0]),
        clipped,
        1e-5,
    )


def test_batch_that_does_not_come_ends_the_run_with_one_line(
    tiny: WithLightning, tmp_path: Path
) -> None:
    options = tiny.arguments(tmp_path, "--data.kind=samples", "--data.timeout=1")
    program = [str(PROGRAMS / "stall_after.py"), "30", str(tmp_path), tiny.name]
    done = run_python(tiny.root, *program, *options, status=1)
    errors = [line for line in done.stderr.splitlines() if "error: " in line]
    assert errors[0].startswith("error: no batch was loaded within 1 seconds: look for a file")
    assert "Traceback" not in done.stderr


def test_last_step_of_an_epoch_is_divided_by_the_micro_batches_that_it_has(
    tiny: WithLightning,
    tmp_path: Path,
) -> None:
    step = one_step(
        [32] * BATCH,
        1,
        8,
        "--model.kind=counted_on_host",
        "--trainer.limit_train_batches=2",
    )
    tiny.run(tmp_path, *step, every=1)
    first = torch.randperm(BATCH, generator=torch.Generator().manual_seed(0))[:4].tolist()
    wanted = expected(tiny, [32 * (place in first) for place in range(BATCH)])
    check(gradients(saved(tmp_path)["optimizer_states"][0]), wanted)


@pytest.fixture(scope="session")
def lowest(shared_folder: Path) -> Path:
    """A folder with the lowest version of Lightning that a project accepts, installed once."""
    requirements = (ROOT / "template/frameworks/lightning/requirements").read_text()
    (version,) = re.findall(r'"lightning>=(\d+\.\d+),', requirements)
    folder = shared_folder / "lowest-lightning"
    with once(folder) as first:
        if first:
            environment = dict(os.environ)
            environment.pop("PIP_CONSTRAINT", None)
            target = ["--no-deps", f"--target={folder}", f"lightning=={version}.0"]
            command = [sys.executable, "-m", "pip", "install", "--quiet", *target]
            subprocess.run(command, check=True, env=environment, capture_output=True)
    return folder


@pytest.mark.test_all
@pytest.mark.slow
@pytest.mark.test_all
def test_lowest_version_trains_resumes_and_validates(
    project: Project,
    lowest: Path,
) -> None:
    """With warnings as errors, as in all rendered tests.

    The highest version is the one that is installed here.
    """
    folder = project("lightning", "mlp")
    search: dict[str, Any] = {"PYTHONPATH": f"{lowest}{os.pathsep}{folder / 'src'}"}
    find = "from importlib.util import find_spec; print(find_spec('lightning').origin)"
    origin = run_in(folder, sys.executable, "-c", find, **search).stdout
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
    run_in(folder, *command, **search)
