"""Merges that once went wrong."""

from pathlib import Path

from program import Fastproj
from updating import MakeProject, commit, git


def test_folder_in_place_of_a_deleted_file(
    make_project: MakeProject, fastproj: Fastproj, fork: Path
) -> None:
    folder = make_project("v0.3.0")
    (fork / "project/logo.bin").unlink()
    (fork / "project/logo.bin").mkdir()
    (fork / "project/logo.bin/large.svg").write_text("<svg/>\n")
    commit(fork)
    git(fork, "tag", "v0.4.0")
    (folder / "logo.bin").unlink()
    commit(folder)
    fastproj("update", "--template", str(fork), cwd=folder)
    assert (folder / "logo.bin/large.svg").read_text() == "<svg/>\n"
