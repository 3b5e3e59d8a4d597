"""The script of the rendered workflow that opens a pull request, run as GitHub does, with a fake `gh`."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from program import Fastproj
from updating import MakeProject, commit, edit, git


@pytest.fixture
def script(fastproj: Fastproj, tmp_path: Path) -> str:
    """The last step's script, as it is rendered."""
    result = fastproj("new", "other", "--yes", "--update-workflow", "--no-git", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    workflow = yaml.safe_load((tmp_path / "other/.github/workflows/update.yml").read_text())
    assert workflow["permissions"] == {}
    steps = workflow["jobs"]["update"]["steps"]
    assert "copier" not in str(steps)
    return str(steps[-1]["run"])


@pytest.mark.parametrize("conflict", [False, True])
def test_workflow_opens_one_pull_request(
    conflict: bool, script: str, make_project: MakeProject, environment: dict[str, str], tmp_path: Path
) -> None:
    folder = make_project("v0.1.0")
    edit(folder / "src/proj/engine.py", *(('"""Of', '"""Mine') if conflict else ("return 20", "return 21")))
    commit(folder)
    git(tmp_path, "clone", "-q", "--bare", str(folder), "origin.git")
    git(folder, "remote", "add", "origin", str(tmp_path / "origin.git"))
    (tmp_path / "bin").mkdir()
    (tmp_path / "temp").mkdir()
    programs = {"gh": f'echo "$@" >> {tmp_path}/called', "fastproj": f'exec {sys.executable} -m fastproj "$@"'}
    for name, line in (programs | {"python": f'exec {sys.executable} "$@"'}).items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{line}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    variables = environment | {"PATH": f"{tmp_path}/bin:{os.environ['PATH']}", "RUNNER_TEMP": str(tmp_path / "temp")}

    def run() -> "subprocess.CompletedProcess[str]":
        shell = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script]  # as GitHub calls it
        return subprocess.run(shell, cwd=folder, env=variables, capture_output=True, text=True, check=False)

    result = run()
    assert result.returncode == 0, result.stderr
    called = (tmp_path / "called").read_text().splitlines()
    assert called[0] == "auth setup-git"
    assert called[1].startswith("pr create --head fastproj-v0.3.0 --title Update to template v0.3.0")
    assert called[1].endswith("--draft") == conflict
    assert "Updated" in (tmp_path / "temp/update.md").read_text()
    pushed = git(tmp_path / "origin.git", "show", "fastproj-v0.3.0:src/proj/engine.py")
    assert ("<<<<<<< yours" in pushed) == conflict
    assert ("Mine" if conflict else "return 21") in pushed
    assert "News" not in pushed

    git(folder, "checkout", "-q", "main")
    assert run().returncode == 0
    assert len((tmp_path / "called").read_text().splitlines()) == 3, "no second one while the first is open"
    git(folder, "checkout", "-q", "fastproj-v0.3.0")
    assert run().returncode == 0
    assert len((tmp_path / "called").read_text().splitlines()) == 3, "nothing newer"


def test_error_fails_the_job(
    script: str, make_project: MakeProject, environment: dict[str, str], tmp_path: Path
) -> None:
    folder = make_project("v0.1.0")
    edit(folder / ".copier-answers.yml", "_commit: v0.1.0", "_commit: v9.9.9")
    commit(folder)
    (tmp_path / "fastproj").write_text(f'#!/bin/sh\nexec {sys.executable} -m fastproj "$@"\n')
    (tmp_path / "fastproj").chmod(0o755)
    variables = environment | {"PATH": f"{tmp_path}:{os.environ['PATH']}", "RUNNER_TEMP": str(tmp_path)}
    shell = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script]
    result = subprocess.run(shell, cwd=folder, env=variables, capture_output=True, text=True, check=False)
    assert result.returncode != 0
    assert "has no version v9.9.9" in result.stderr
