"""A project of an earlier release, updated with its own model.py and data.py, resumes the runs of the old code."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from matrix import EVERY, MEASURED
from program import PROGRAMS, Fastproj
from updating import commit, git, read_answers
from warm import run_python

PACKAGE = Path("src/proj")
MOVED = {"switches/schedules.py": "techniques/schedules.py", "tools/writing.py": "tools/atomic_file.py"}
"""Two of the renamed files; the table in `test_update_releases.py` has all."""
OPTIONS = ["--config=configs/default.yaml", "--config=configs/smoke.yaml", "--run.device=cpu", "--run.name=old"]
OPTIONS += ["--train.steps=8", "--train.eval_every=4", "--log.every=1", "--log.tensorboard=false"]


def read_rows(run: Path) -> list[dict[str, Any]]:
    """Return the logged metrics, without those that depend on time."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{key: row[key] for key in row if key not in MEASURED} for row in rows]


def update_with_fastproj(folder: Path, fastproj: Fastproj, environment: dict[str, str]) -> None:
    result = fastproj("update", "--yes", cwd=folder)
    assert result.returncode == 0, result.stdout + result.stderr


def update_with_copier(folder: Path, fastproj: Fastproj, environment: dict[str, str]) -> None:
    """Between releases, the newest version of the template is a development version."""
    command = [str(Path(sys.executable).parent / "copier"), "update", "--defaults", "--prereleases"]
    result = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


Update = Callable[[Path, Fastproj, dict[str, str]], None]
OTHERS = [
    pytest.param("0.2.0", update_with_fastproj, MOVED, id="0.2.0-fastproj"),
    pytest.param("0.2.0", update_with_copier, {}, id="0.2.0-copier"),  # it loses edits in moved files
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("version", "update", "moved"),
    [
        pytest.param("0.1.0", update_with_fastproj, MOVED, id="0.1.0-fastproj"),
        *(OTHERS if EVERY else []),
    ],
)
def test_updated_project_resumes_bit_identically(
    version: str,
    update: Update,
    moved: dict[str, str],
    released: Callable[[str, str], Path],
    fastproj: Fastproj,
    environment: dict[str, str],
) -> None:
    folder = released(version, "mlp")
    result = run_python(folder, "-m", "proj.train", *OPTIONS)
    assert result.returncode == 0, result.stderr
    run = folder / "runs/old"
    before = read_rows(run)
    assert [row["step"] for row in before if row["split"] == "val"] == [4, 8]

    for name in ("model.py", "data.py", *moved):
        with (folder / PACKAGE / name).open("a") as file:
            file.write(f"\n\nMINE = {name!r}\n")
    own = {name: (folder / PACKAGE / name).read_text() for name in ("model.py", "data.py")}
    commit(folder)
    update(folder, fastproj, environment)
    assert read_answers(folder)["_commit"] != f"v{version}"
    assert git(folder, "ls-files", "-u") == ""
    assert {name: (folder / PACKAGE / name).read_text() for name in own} == own
    for name, place in moved.items():
        assert f"MINE = {name!r}" in (folder / PACKAGE / place).read_text()
        assert not (folder / PACKAGE / name).exists()

    shutil.rmtree(run / "checkpoints/step-00000008")  # as if the old code had been stopped before
    program = str(PROGRAMS / "resume_and_report.py")
    result = run_python(folder, program, str(run), *OPTIONS, "--run.resume=auto")
    assert result.returncode == 0, result.stderr
    assert read_rows(run) == before
    evaluation = json.loads((run / "checkpoints/step-00000008/evaluation.json").read_text())
    assert evaluation["loss"] == pytest.approx(before[-1]["loss"], rel=1e-5)
    assert (run / "report.png").stat().st_size > 5000
