"""Merges that once went wrong: nested projects, files that become folders, conflicts that are none."""

import shutil
from pathlib import Path

from program import Fastproj
from updating import MakeProject, build, commit, git, read_files


def test_nested_project_is_left_alone(
    make_project: MakeProject, render_release: MakeProject, fastproj: Fastproj
) -> None:
    """The nested files are equal to those that were deleted, so git would take them for the renamed ones."""
    folder = make_project()
    inner = folder / "examples/proj"
    shutil.copytree(render_release("v0.1.0"), inner, ignore=shutil.ignore_patterns(".git"))
    for name in ("README.md", "src/proj/engine.py", "src/proj/loop.py", "src/proj/old.py"):
        (folder / name).unlink()
    commit(folder)
    before = read_files(inner)
    assert "renamed" not in fastproj("status", cwd=folder).stdout
    result = fastproj("update", "--yes", cwd=folder)
    assert result.returncode == 0, result.stdout + result.stderr
    assert read_files(inner) == before
    assert not (folder / "README.md").exists()
    commit(folder)
    outer = {path: content for path, content in read_files(folder).items() if not path.startswith("examples/")}
    result = fastproj("update", "--yes", cwd=inner)
    assert result.returncode == 0, result.stdout + result.stderr
    assert {path: it for path, it in read_files(folder).items() if not path.startswith("examples/")} == outer
    assert (inner / "src/proj/train.py").exists()


def test_folder_in_place_of_a_deleted_file(make_project: MakeProject, fastproj: Fastproj, tmp_path: Path) -> None:
    folder = make_project("v0.3.0")
    git(tmp_path, "clone", "-q", str(build(tmp_path)), "fork")
    (tmp_path / "fork/project/logo.bin").unlink()
    (tmp_path / "fork/project/logo.bin").mkdir()
    (tmp_path / "fork/project/logo.bin/large.svg").write_text("<svg/>\n")
    commit(tmp_path / "fork")
    git(tmp_path / "fork", "tag", "v0.4.0")
    (folder / "logo.bin").unlink()
    commit(folder)
    result = fastproj("update", "--yes", "--template", str(tmp_path / "fork"), cwd=folder)
    assert result.returncode == 0, result.stdout + result.stderr
    assert (folder / "logo.bin/large.svg").read_text() == "<svg/>\n"
