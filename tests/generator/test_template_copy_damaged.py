"""The program's local copy of the template, damaged, replaced or not writable."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from fastproj.shared.embedded import entries
from history import RELEASES, Repository, refresh, start
from program import LIMIT_S
from template_bundle import build
from template_copy import clones


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """The program's folder, with its copy of the template."""
    return tmp_path / "home"


def other_template(home: Path, version: str) -> None:
    """Write the bundle of another template, created with git commands."""
    mine = Repository(home.parent / "other")
    mine.start()
    mine.write({"copier.yml": "_subdirectory: template\n", "template/mine.txt": "mine\n"})
    mine.commit("Mine")
    mine.git("tag", f"v{version}")
    mine.git("bundle", "create", "--quiet", str(home / "template.bundle"), "--all", "HEAD")


def a_fork(home: Path) -> None:
    """Write a bundle whose history has other files under one of our versions, and a later version."""
    mine = Repository(home.parent / "other")
    mine.start()
    mine.write({**RELEASES["0.1.0"], "template/project/old.txt": "other\n"})
    mine.commit("Release", "0.1.0")
    mine.commit("Release", "9.9.9")
    build(mine.folder, home / "template.bundle")


def dangling_link(home: Path) -> None:
    (home / "template.bundle").unlink()
    (home / "template.bundle").symlink_to("nowhere")


def a_pipe(home: Path) -> None:
    (home / "template.bundle").unlink()
    os.mkfifo(home / "template.bundle")


DAMAGES: dict[str, Callable[[Path], object]] = {
    "empty": lambda home: (home / "template.bundle").write_bytes(b""),
    "random": lambda home: (home / "template.bundle").write_bytes(os.urandom(3000)),
    "truncated": lambda home: os.truncate(home / "template.bundle", 900),
    "a byte short": lambda home: os.truncate(home / "template.bundle", (home / "template.bundle").stat().st_size - 1),
    "another's of a later version": lambda home: other_template(home, "9.9.9"),
    "another's of the same version": lambda home: other_template(home, "0.2.0"),
    "a fork's": a_fork,
    "a dangling link": dangling_link,
    "a pipe": a_pipe,
    "gone": lambda home: (home / "template.bundle").unlink(),
}


@pytest.mark.parametrize("program", ["0.2.0", "development"])
@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_damaged_or_foreign_copy_is_replaced(
    damage: Callable[[Path], object], program: str, programs: dict[str, dict[str, str]], home: Path, tmp_path: Path
) -> None:
    tag = refresh(programs[program], home)
    right = entries(home / "template.bundle")
    damage(home)
    assert refresh(programs[program], home) == tag
    assert entries(home / "template.bundle") == right
    assert clones(home, tmp_path / "clone")


def run_new(program: dict[str, str], folder: Path, **changes: str) -> subprocess.CompletedProcess[str]:
    folder.mkdir(exist_ok=True)
    return subprocess.run(
        [sys.executable, "-m", "fastproj", "new", "proj", "--yes", "--output", str(folder)],
        env=program | changes,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("place", ["/proc/fastproj", "{}/file/below", "{}/taken"])
@pytest.mark.parametrize("program", ["0.3.0"])
def test_unwritable_home_is_a_one_line_error(
    place: str, program: str, programs: dict[str, dict[str, str]], tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "taken/template.bundle/x").mkdir(parents=True)
    result = run_new(programs[program], tmp_path / "out", FASTPROJ_HOME=place.format(tmp_path))
    assert result.returncode == 1
    assert result.stderr.count("\n") == 1, result.stderr
    assert "set FASTPROJ_HOME to a writable folder" in result.stderr
    assert os.listdir(tmp_path / "out") == []
    assert os.listdir(tmp_path / "taken") == ["template.bundle"]


def test_complete_copy_in_a_read_only_folder_is_used(programs: dict[str, dict[str, str]], home: Path) -> None:
    refresh(programs["0.3.0"], home)
    code = (
        "import os, fastproj.shared.embedded as e\n"
        "def refuse(*a, **k): raise PermissionError(13, 'Permission denied')\n"  # root may write anywhere
        "os.mkdir = os.replace = refuse\n"
        "print(e.refresh_copy()[1])"
    )
    for program in ("0.3.0", "0.2.0"):
        output, message = start(programs[program], home, code).communicate(timeout=LIMIT_S)
        assert output == f"v{program}\n", message


@pytest.mark.parametrize("damage", [Path.unlink, lambda file: os.truncate(file, 500)], ids=["gone", "truncated"])
def test_damaged_installation_is_a_one_line_error(
    damage: Callable[[Path], None], programs: dict[str, dict[str, str]], tmp_path: Path
) -> None:
    site = shutil.copytree(programs["0.3.0"]["PYTHONPATH"], tmp_path / "site")
    damage(site / "fastproj/_template.bundle")
    result = run_new(
        programs["0.3.0"] | {"PYTHONPATH": str(site)}, tmp_path / "out", FASTPROJ_HOME=str(tmp_path / "home")
    )
    assert result.returncode == 1
    assert result.stderr.count("\n") == 1, result.stderr
    assert "reinstall fastproj" in result.stderr
