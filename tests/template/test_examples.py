"""The patches of examples/ fit the projects that are rendered; some train for a few steps.

EVERY_TEST=1 replays all.
"""

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from matrix import ROOT
from program import run_in
from warm import run_python

EXAMPLES = sorted(file.parent.name for file in ROOT.glob("examples/*/example.toml"))
TRAINED = {"gan", "own-graphs", "shards"}
"""Those with a `train.py`, a `collate_fn` and a stream: `make test` trains these for some steps."""
SHORT = [
    "--config=configs/default.yaml",
    "--run.name=first",
    "--train.steps=4",
    "--train.eval_every=4",
]


def replay(
    environment: dict[str, str], *arguments: str, root: Path = ROOT
) -> subprocess.CompletedProcess[str]:
    """Run the program that replays examples."""
    command = [sys.executable, str(root / "examples/replay.py"), *arguments]
    return subprocess.run(
        command,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("example", EXAMPLES)
def test_patch_applies_and_the_project_trains(
    example: str, environment: dict[str, str], tmp_path: Path
) -> None:
    done = replay(environment, example, "--edit", str(tmp_path))
    assert done.returncode == 0, done.stderr
    if example not in TRAINED:
        return
    project = tmp_path / "proj"
    prepare = tomllib.loads((ROOT / "examples" / example / "example.toml").read_text())
    if "prepare" in prepare:
        run_in(
            project,
            sys.executable,
            str(ROOT / "examples" / example / prepare["prepare"]),
        )
    done = run_python(project, "-m", "proj.train", *SHORT, "--loader.num_workers=0")
    assert "done after 4 steps" in done.stdout


@pytest.mark.test_all
@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("example", EXAMPLES)
def test_example_reaches_its_result(example: str, environment: dict[str, str]) -> None:
    """With the checks and tests of the project; without training, if a package is missing."""
    done = replay(environment, example)
    print(done.stdout)
    assert done.returncode == 0, done.stderr


def changed_lines(patch: Path) -> list[str]:
    """Return the lines that a patch adds and removes, with the names of their files."""
    return [line for line in patch.read_text().splitlines() if line.startswith(("+", "-"))]


def test_edited_project_becomes_the_patch(environment: dict[str, str], tmp_path: Path) -> None:
    """Unchanged, the same changes; line numbers and hashes differ once the template has changed."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    patch = tmp_path / "examples/gan/change.patch"
    assert replay(environment, "gan", "--edit", str(tmp_path), root=tmp_path).returncode == 0
    before = changed_lines(patch)
    patch.unlink()
    (tmp_path / "proj/mine.txt").write_text("mine\n")
    assert replay(environment, "gan", "--save", str(tmp_path), root=tmp_path).returncode == 0
    mine = ["--- /dev/null", "+++ b/mine.txt", "+mine"]
    assert sorted(changed_lines(patch)) == sorted(before + mine)
