"""What the tasks share: the project of a solver, and how a check trains and tests it."""

import importlib
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any
from unittest import mock

NAME = "study"
"""Name of each project, and of its package."""
ROOT = Path(__file__).parents[2]
LOOP = f"src/{NAME}/tests/test_train.py"
RECIPE = "configs/default.yaml"


class NotDone(Exception):  # noqa: N818
    """What is missing of a task."""


def expect(condition: object, problem: str) -> None:
    """Raise `NotDone` with the problem, unless the condition is true."""
    if not condition:
        raise NotDone(problem)


def write_template(bundle: Path) -> None:
    """Write the template of this checkout as a bundle with one release."""
    with tempfile.TemporaryDirectory() as scratch:
        release = Path(scratch)
        left_out = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / "template", release / "template", ignore=left_out)
        shutil.copy(ROOT / "copier.yml", release)
        git(release, "init", "--quiet")
        commit_release(release, "v1.0.0", bundle)


def commit_release(folder: Path, version: str, bundle: Path) -> None:
    """Commit a release of the template, and write the bundle of all its releases."""
    git(folder, "add", "--all", "--force")
    git(folder, "commit", "--quiet", "--message", version)
    git(folder, "tag", version)
    git(folder, "bundle", "create", "--quiet", str(bundle), "--tags", "HEAD")


def render(output: Path, model: str, *options: str) -> Path:
    """Render a project for CPUs below a folder, and return its own folder."""
    output.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "fastproj", "new", NAME, "--model", model, "--gpus", "0"]
    command += ["--framework", "pytorch", "--yes", "--output", str(output), *options]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return output / NAME


def git(folder: Path, *arguments: str) -> str:
    """Run git with an identity, and return its output."""
    identity = ["-c", "user.name=User", "-c", "user.email=user@example.org"]
    result = subprocess.run(
        ["git", *identity, *arguments],
        cwd=folder,
        check=True,
        capture_output=True,
        text=True,
    )
    return result.stdout


def replace(file: Path, old: str, new: str) -> None:
    """Replace a text that a file has exactly once."""
    text = file.read_text(encoding="utf-8")
    if text.count(old) != 1:
        raise ValueError(f"{file} has {text.count(old)} times: {old}")
    file.write_text(text.replace(old, new), encoding="utf-8")


def read_rows(run: Path, split: str) -> list[dict[str, Any]]:
    """Return the metrics of a run's training (train) or of its validations (val)."""
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    return [row for row in rows if row["split"] == split]


def losses(run: Path, split: str) -> list[float]:
    """Return the losses of the rows of a run."""
    return [row["loss"] for row in read_rows(run, split)]


def is_finished(run: Path) -> bool:
    """Whether a run has reached its end."""
    file = run / "summary.json"
    return file.exists() and json.loads(file.read_text(encoding="utf-8"))["exit"] == "finished"


def are_close(first: list[float], second: list[float], relative: float = 1e-5) -> bool:
    """Whether two lists of losses agree."""
    if len(first) != len(second):
        return False
    return all(
        abs(a - b) <= relative * max(abs(a), abs(b)) for a, b in zip(first, second, strict=True)
    )


class Project:
    """A copy of a solver's project, so that a check leaves nothing in it.

    Its package is imported into this process: a process checks one project.
    """

    def __init__(self, original: Path, scratch: Path) -> None:
        self.original = original
        self.scratch = scratch
        self.folder = scratch / "copy" / NAME
        left_out = shutil.ignore_patterns(".venv", "runs", ".mypy_cache")
        shutil.copytree(original, self.folder, ignore=left_out, symlinks=True)
        sys.path.insert(0, str(self.folder / "src"))
        os.chdir(self.folder)

    def module(self, name: str) -> Any:
        """Import a module of the project's package."""
        return importlib.import_module(f"{NAME}.{name}")

    def program(self, name: str, *options: str) -> tuple[int, str, str]:
        """Run a module as `python -m` does; return exit status, stdout and stderr."""
        module = self.module(name)
        out = io.StringIO()
        errors = io.StringIO()
        status = 0
        with (
            mock.patch.object(sys, "argv", [name, *options]),
            redirect_stdout(out),
            redirect_stderr(errors),
        ):
            try:
                module.main()
            except SystemExit as end:
                status = int(end.code or 0)
            except Exception as error:
                status = 1
                print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return status, out.getvalue(), errors.getvalue()

    def train(self, *options: str) -> Path:
        """Train with the recipe and further options; return the folder of the run."""
        runs = Path(tempfile.mkdtemp(dir=self.scratch))
        names = [f"--run.dir={runs}", "--run.name=check"]
        status, _, errors = self.program("train", "--config", RECIPE, *names, *options)
        last = errors.strip().splitlines()[-1:]
        expect(status == 0, f"training with {RECIPE} ends with status {status}: {last}")
        return runs / "check"

    def reference_run(self, model: str, *options: str) -> Path:
        """Train a project that nobody changed; return the folder of the run."""
        template = str(self.original.parent / "template.bundle")
        output = self.scratch / "reference"
        folder = render(output, model, "--template", template, "--no-git")
        command = [sys.executable, "-m", f"{NAME}.train", "--config", RECIPE]
        subprocess.run(
            [*command, "--run.name=check", *options],
            cwd=folder,
            env=os.environ | {"PYTHONPATH": "src"},
            check=True,
            capture_output=True,
        )
        return folder / "runs/check"

    def config(self, *options: str) -> Any:
        """Return the config of the recipe with further options."""
        config = self.module("components").Config
        return self.module("config").parse(config, ["--config", RECIPE, *options])

    def refuses(self, *options: str) -> bool:
        """Whether a config is refused as training does it: with a line, and no traceback."""
        try:
            self.config(*options)
        except self.module("errors").UserError:
            return True
        return False

    def load(self, *options: str) -> tuple[Any, Any, Any]:
        """Return the training set, the validation set and the Spec of data.py."""
        contracts = self.module("contracts")
        sets: tuple[Any, Any, Any] = contracts.load_data(
            self.module("data"), self.config(*options).data
        )
        return sets

    def whole_batch(self, dataset: Any) -> Any:
        """Return all samples of a dataset as one batch, as the loader makes it."""
        from torch.utils.data import default_collate

        indices = list(range(len(dataset)))
        contracts = self.module("contracts")
        get_batch = contracts.whole_batches(dataset)
        if get_batch:
            return get_batch(indices)
        collate = contracts.collate_fn(dataset) or default_collate
        return collate([dataset[index] for index in indices])

    def run_tests(self) -> None:
        """Run the tests of the project, without those of the loop, which take minutes."""
        result = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-x", "src", "--deselect", LOOP],
            cwd=self.folder,
            env=os.environ | {"PYTHONPATH": "src", "OMP_NUM_THREADS": "1"},
            check=False,
            capture_output=True,
            text=True,
        )
        last = result.stdout.strip().splitlines()[-1:]
        expect(result.returncode == 0, f"the tests of the project fail: {last}")


@contextmanager
def opened(folder: Path) -> Iterator[Project]:
    """Open the project of a prepared folder for a check."""
    with tempfile.TemporaryDirectory() as scratch:
        yield Project(folder.absolute() / NAME, Path(scratch))
