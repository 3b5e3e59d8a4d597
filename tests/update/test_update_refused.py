"""`fastproj update` refuses, in one line and without any change, what it cannot do safely."""

import shutil
from pathlib import Path

import pytest
from edits import State
from git_settings import REFUSING
from hostile_settings import broken_gitconfig
from program import Fastproj
from refused import REFUSED
from updating import MakeProject, git, read_files

STATES = [*REFUSED, *(it for it in REFUSING if it[0] is not broken_gitconfig)]
"""`test_broken_git_settings_are_named` has the other one."""


@pytest.mark.parametrize(
    ("state", "message"),
    STATES,
    ids=lambda value: getattr(
        value,
        "__name__",
        None,
    ),
)
def test_update_is_refused(
    state: State,
    message: str,
    make_project: MakeProject,
    bundles: list[Path],
    fastproj: Fastproj,
    tmp_path: Path,
) -> None:
    folder = make_project()
    shutil.copy(bundles[-1], tmp_path / "team.bundle")
    state(folder)
    before = read_files(tmp_path)
    result = fastproj("update", cwd=folder, status=1)
    assert message in result.stderr
    assert result.stdout == ""
    assert read_files(tmp_path) == before


BAD = [
    (["--model", "three"], "three"),
    (["--data", "package=other"], "has no such question"),
    (["--tensor-cores", "bf16"], "needs a GPU"),
    (["--to", "0.9"], "has no version 0.9"),
    (["--to", "main"], "has no version main"),
    (["--to", "--help"], "has no version --help"),
    (["--template", ""], "is not on this machine"),
    (["nowhere"], "is not a folder"),
    (["/"], "no .copier-answers.yml"),
]


@pytest.mark.parametrize(
    ("options", "message"),
    BAD,
    ids=lambda value: ascii(" ".join(value))[:40],
)
def test_bad_option_is_a_one_line_error(
    options: list[str], message: str, make_project: MakeProject, fastproj: Fastproj
) -> None:
    folder = make_project()
    before = read_files(folder)
    result = fastproj("update", *options, cwd=folder, status=None)
    assert result.returncode in (1, 2), result.stdout
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
    assert read_files(folder) == before
    assert git(folder, "status", "--porcelain") == ""
