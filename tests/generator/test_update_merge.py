"""Merges that once went wrong."""

from pathlib import Path

from program import Fastproj
from updating import MakeProject, build, commit, git


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
    result = fastproj("update", "--template", str(tmp_path / "fork"), cwd=folder)
    assert result.returncode == 0, result.stdout + result.stderr
    assert (folder / "logo.bin/large.svg").read_text() == "<svg/>\n"
