"""`fastproj update` inside a larger repository, with submodules and linked work trees, and with hostile settings."""

import shutil
import subprocess
from pathlib import Path

from edits import PACKAGE, deleted, edited_another_function, renamed
from program import Fastproj
from updating import MakeProject, commit, edit, git, lost_edits, read_answers, read_files


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
    refused = fastproj("update", cwd=folder)
    assert "other/staged.txt changed since the last commit" in refused.stderr, (
        "git cherry-pick --abort would remove it"
    )
    git(top, "rm", "--cached", "-q", "other/staged.txt")
    before, others = read_files(folder), read_files(top / "other")
    result = fastproj("update", cwd=folder / "src/proj")
    assert result.returncode == 0, result.stdout + result.stderr
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
    subprocess.run(result.stdout.strip().splitlines()[-1], shell=True, check=True, cwd=folder)  # noqa: S602
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
    result = fastproj("update", cwd=folder)
    assert result.returncode == 0, result.stderr
    assert read_files(folder / "vendor") == inside
    assert "vendor" not in git(folder, "diff", "--staged", "--name-only")
    git(folder, "reset", "-q", "--hard")
    git(folder, "worktree", "add", "-q", str(tmp_path / "linked"))
    result = fastproj("update", cwd=tmp_path / "linked")
    assert result.returncode == 0, result.stderr
    assert read_answers(tmp_path / "linked")["_commit"] == "v0.3.0"
    assert git(folder, "status", "--porcelain", "--ignore-submodules=dirty") == ""


def test_hostile_git_settings_have_no_effect(
    make_project: MakeProject, fastproj: Fastproj, tmp_path: Path
) -> None:
    folder = make_project()
    renamed(folder)
    commit(folder)
    hooks = tmp_path / "hooks"
    hooks.mkdir()
    for name in ("post-index-change", "reference-transaction", "post-checkout"):
        (hooks / name).write_text(f"#!/bin/sh\ntouch {tmp_path}/hooked\nexit 1\n")
        (hooks / name).chmod(0o755)
    settings = f"[core]\nhooksPath = {hooks}\nexcludesFile = {tmp_path}/ignore\nautocrlf = input\n"
    settings += "[merge]\nrenames = false\nconflictStyle = diff3\ndirectoryRenames = true\n"
    settings += "[diff]\nrenames = false\nnoprefix = true\n[commit]\ngpgSign = true\n"
    settings += (
        "[status]\nshowUntrackedFiles = no\nrelativePaths = true\n[protocol]\nallow = never\n"
    )
    (tmp_path / ".gitconfig").write_text(
        settings + "[color]\nui = always\n[safe]\nbareRepository = explicit\n"
    )
    (tmp_path / "ignore").write_text("*\n")
    hostile = {
        "HOME": str(tmp_path),
        "GIT_DIR": "/nowhere",
        "GIT_INDEX_FILE": "/nowhere",
        "GIT_OBJECT_DIRECTORY": "/x",
    }
    result = fastproj("update", cwd=folder, **hostile)
    assert result.returncode == 0, result.stderr
    assert not (tmp_path / "hooked").exists()
    assert '"""Of release 3."""' in (folder / PACKAGE / "motor.py").read_text()


def test_sha256_repository(make_project: MakeProject, fastproj: Fastproj) -> None:
    folder = make_project()
    shutil.rmtree(folder / ".git")
    git(folder, "init", "-q", "--object-format=sha256")
    deleted(folder)
    readme = folder / "README.md"
    edit(readme, "Release", "My release")
    commit(folder)
    result = fastproj("update", cwd=folder)
    assert (result.returncode, result.stderr) == (4, ""), "a conflict"
    assert "My release" in readme.read_text()
    assert not (folder / "logo.bin").exists()
