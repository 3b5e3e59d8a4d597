"""`fastproj update` inside a larger repository, with submodules and linked work trees."""

import shutil
from pathlib import Path

from edits import edited_another_function
from program import Fastproj
from updating import MakeProject, commit, git, lost_edits, read_answers, read_files, run_undo


def test_project_in_a_subfolder_of_a_repository(
    render_release: MakeProject, fastproj: Fastproj, tmp_path: Path
) -> None:
    top = tmp_path / "large"
    shutil.copytree(
        render_release("v0.1.0"), top / "train/proj", ignore=shutil.ignore_patterns(".git")
    )
    (top / "other").mkdir()
    (top / "other/file.txt").write_text("committed\n")
    git(top, "init", "-q")
    commit(top)
    folder = top / "train/proj"
    before_edits = read_files(folder)
    edited_another_function(folder)
    (top / "tools").mkdir()
    (folder / "README.md").rename(top / "tools/README.md")
    commit(top)
    (top / "other/file.txt").write_text("dirty\n")
    (top / "other/staged.txt").write_text("staged\n")
    git(top, "add", "other/staged.txt")
    refused = fastproj("update", cwd=folder, status=1)
    assert "other/staged.txt changed since the last commit" in refused.stderr, (
        "git cherry-pick --abort would remove it"
    )
    git(top, "rm", "--cached", "-q", "other/staged.txt")
    before = read_files(folder)
    others = read_files(top / "other")
    result = fastproj("update", cwd=folder / "src/proj")
    assert lost_edits(folder, before, before_edits) == []
    assert "Release 1." in (top / "tools/README.md").read_text()
    assert "deleted   train/proj/README.md" in result.stdout, (
        "what left the project's folder is not followed"
    )
    assert read_files(top / "other") == others
    status = git(top, "status", "--porcelain").splitlines()
    assert {"M other/file.txt", " M other/file.txt"} & set(status)
    assert "A  train/proj/docs/new.md" in status
    assert read_answers(folder)["_commit"] == "v0.3.0"
    run_undo(folder, result.stdout.strip().splitlines()[-1])
    assert read_files(folder) == before
    assert read_files(top / "other") == others


def test_submodule_and_linked_work_tree(
    make_project: MakeProject, fastproj: Fastproj, tmp_path: Path
) -> None:
    folder = make_project()
    other = tmp_path / "other"
    other.mkdir()
    git(other, "init", "-q")
    (other / "lib.py").write_text("mine = 1\n")
    commit(other)
    git(
        folder,
        "-c",
        "protocol.file.allow=always",
        "submodule",
        "--quiet",
        "add",
        str(other),
        "vendor/lib",
    )
    edited_another_function(folder)
    commit(folder)
    (folder / "vendor/lib/lib.py").write_text("mine = 2\n")
    inside = read_files(folder / "vendor")
    fastproj("update", cwd=folder)
    assert read_files(folder / "vendor") == inside
    assert "vendor" not in git(folder, "diff", "--staged", "--name-only")
    git(folder, "reset", "-q", "--hard")
    git(folder, "worktree", "add", "-q", str(tmp_path / "linked"))
    fastproj("update", cwd=tmp_path / "linked")
    assert read_answers(tmp_path / "linked")["_commit"] == "v0.3.0"
    assert git(folder, "status", "--porcelain", "--ignore-submodules=dirty") == ""
