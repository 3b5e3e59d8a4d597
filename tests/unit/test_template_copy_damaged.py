"""The program's local copy of the template, damaged, replaced or not writable."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from fastproj.template import embedded
from fastproj.template.embedded import entries
from history import RELEASES, Repository
from program import Fastproj
from template_bundle import build
from template_copy import clones


def other_template(home: Path, version: str) -> None:
    """Write the bundle of another template, created with git commands."""
    mine = Repository(home.parent / "other")
    mine.start()
    mine.write({"copier.yml": "_subdirectory: template\n", "template/mine.txt": "mine\n"})
    mine.commit("Mine")
    mine.git("tag", f"v{version}")
    mine.git(
        "bundle",
        "create",
        "--quiet",
        str(home / "template.bundle"),
        "--all",
        "HEAD",
    )


def a_fork(home: Path) -> None:
    """Write a bundle with other files under one of our versions, and a later version."""
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
    "a byte short": lambda home: os.truncate(
        home / "template.bundle", (home / "template.bundle").stat().st_size - 1
    ),
    "another's of a later version": lambda home: other_template(home, "9.9.9"),
    "another's of the same version": lambda home: other_template(home, "0.2.0"),
    "a fork's": a_fork,
    "a dangling link": dangling_link,
    "a pipe": a_pipe,
    "gone": lambda home: (home / "template.bundle").unlink(),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_damaged_or_foreign_copy_is_replaced(
    damage: Callable[[Path], object], refresh: Callable[[str], str], copies: Path, tmp_path: Path
) -> None:
    for program in ("0.2.0", "development"):
        tag = refresh(program)
        right = entries(copies / "template.bundle")
        damage(copies)
        assert refresh(program) == tag
        assert entries(copies / "template.bundle") == right
        assert clones(copies, tmp_path / "clone")
        shutil.rmtree(tmp_path / "other", ignore_errors=True)


@pytest.mark.parametrize("place", ["/proc/fastproj", "{}/file/below", "{}/taken"])
@pytest.mark.usefixtures("small_template")
def test_unwritable_home_is_a_one_line_error(
    place: str, fastproj: Fastproj, tmp_path: Path
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "file").touch()
    (tmp_path / "taken/template.bundle/x").mkdir(parents=True)
    home = place.format(tmp_path)
    result = fastproj(
        "new", "proj", "--yes", "--output", str(tmp_path / "out"), FASTPROJ_HOME=home, status=1
    )
    assert "set FASTPROJ_HOME to a writable folder" in result.stderr
    assert os.listdir(tmp_path / "out") == []
    assert os.listdir(tmp_path / "taken") == ["template.bundle"]


def refuse(*_: object, **__: object) -> None:
    """Root may write anywhere."""
    raise PermissionError(13, "Permission denied")


def test_complete_copy_in_a_read_only_folder_is_used(
    refresh: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    refresh("0.3.0")
    monkeypatch.setattr(os, "mkdir", refuse)
    monkeypatch.setattr(os, "replace", refuse)
    for program in ("0.3.0", "0.2.0"):
        assert refresh(program) == f"v{program}"


@pytest.mark.parametrize(
    "size",
    [0, 500],
    ids=["gone", "truncated"],
)
def test_damaged_installation_is_a_one_line_error(
    size: int,
    bundles: list[Path],
    fastproj: Fastproj,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "out").mkdir()
    if size:
        (tmp_path / "own.bundle").write_bytes(bundles[-1].read_bytes()[:size])
    monkeypatch.setattr(embedded, "_PACKED", tmp_path / "own.bundle")
    result = fastproj(
        "new",
        "proj",
        "--yes",
        "--output",
        str(tmp_path / "out"),
        status=1,
    )
    assert "reinstall fastproj" in result.stderr
