"""An update is a git operation: its conflicts, its undoing, the settings that apply."""

import shutil
from pathlib import Path

import pytest
from edits import edited_another_function, edited_same_line, failing_hooks
from fastproj.errors import CONFLICTS
from program import Fastproj
from updating import (
    MakeProject,
    commit,
    edit,
    git,
    project_state,
    read_answers,
    read_files,
    run_undo,
)

ENGINE = "src/proj/engine.py"


@pytest.fixture
def conflict(make_project: MakeProject, fastproj: Fastproj) -> Path:
    """A project in which an update has left a conflict."""
    folder = make_project()
    edited_same_line(folder)
    commit(folder)
    fastproj("update", cwd=folder, status=CONFLICTS)
    return folder


def cherry_pick(folder: Path, how: str) -> None:
    who = ["-c", "user.name=u", "-c", "user.email=u@example.org", "-c", "core.editor=true"]
    git(folder, *who, "cherry-pick", how)


def test_conflict_is_that_of_a_cherry_pick(conflict: Path) -> None:
    assert "You are currently cherry-picking" in git(conflict, "status")
    assert git(conflict, "diff", "--name-only", "--diff-filter=U") == ENGINE
    stages = {line.split()[2] for line in git(conflict, "ls-files", "-u").splitlines()}
    assert stages == {"1", "2", "3"}
    assert '+    """Of release 3."""' in git(conflict, "show", "CHERRY_PICK_HEAD", "--", ENGINE)


def test_continue_commits_the_update_also_after_garbage_collection(conflict: Path) -> None:
    git(conflict, "gc", "-q", "--prune=now")
    git(conflict, "checkout", "--theirs", ENGINE)
    git(conflict, "add", ENGINE)
    cherry_pick(conflict, "--continue")
    assert (
        git(conflict, "log", "-1", "--format=%s %P")
        == f"Update to template v0.3.0 {git(conflict, 'rev-parse', '@~')}"
    )
    assert git(conflict, "status", "--porcelain") == ""
    assert not list((conflict / ".git").rglob("*CHERRY_PICK_HEAD*"))
    assert read_answers(conflict)["_commit"] == "v0.3.0"


@pytest.mark.parametrize(("line", "staged"), [(-3, False), (-1, True)])
def test_undo_of_conflicts_restores_every_file_and_keeps_later_edits(
    line: int, staged: bool, make_project: MakeProject, fastproj: Fastproj
) -> None:
    folder = make_project()
    edited_same_line(folder)
    (folder / "own.py").write_text("OWN = 1\n")
    commit(folder)
    before = read_files(folder)
    result = fastproj("update", cwd=folder, status=CONFLICTS)
    (folder / "own.py").write_text("OWN = 2\n")
    (folder / "later.py").write_text("LATER = 1\n")
    if staged:
        git(folder, "add", "own.py", "later.py")
    undo = result.stdout.strip().splitlines()[line].strip()
    assert undo.startswith("git read-tree " if staged else "git cherry-pick --abort")
    run_undo(folder, undo)
    later = {"own.py": ("-", b"OWN = 2\n"), "later.py": ("-", b"LATER = 1\n")}
    assert read_files(folder) == before | later
    assert not list((folder / ".git").rglob("*CHERRY_PICK_HEAD*"))


def test_undo_touches_only_the_files_of_the_update(
    make_project: MakeProject, fastproj: Fastproj
) -> None:
    folder = make_project()
    for name in ("own.py", "staged.py"):
        (folder / name).write_text("OWN = 1\n")
    commit(folder)
    before = read_files(folder)
    result = fastproj("update", cwd=folder)
    assert not (folder / ".git/CHERRY_PICK_HEAD").exists(), "nothing is left to continue"
    for name in ("own.py", "staged.py", "later.py"):
        (folder / name).write_text("OWN = 2\n")
    git(folder, "add", "staged.py", "later.py")
    edit(folder / "README.md", "About", "Mine")
    undo = result.stdout.strip().splitlines()[-1].strip()
    done = run_undo(folder, undo, check=False)
    assert b"README.md" in done.stderr, "it is edited since"
    assert "Mine" in (folder / "README.md").read_text()
    git(folder, "restore", "README.md")
    run_undo(folder, undo)
    assert read_files(folder) == before | dict.fromkeys(
        ("own.py", "staged.py", "later.py"), ("-", b"OWN = 2\n")
    )


def test_undo_of_conflicts_where_git_refuses_to_abort(conflict: Path, fastproj: Fastproj) -> None:
    git(conflict, "cherry-pick", "--abort")
    failing_hooks(conflict)
    before = read_files(conflict)
    lines = fastproj("update", cwd=conflict, status=CONFLICTS).stdout.splitlines()
    for name in ("README.md", "docs/new.md"):
        (conflict / name).write_text("changed since\n")
    refused = run_undo(conflict, lines[-3], check=False)
    assert b"README.md" in refused.stderr
    git(conflict, "add", ENGINE, "README.md")
    git(conflict, "rm", "-qf", "notes.local")
    run_undo(conflict, lines[-1])
    assert read_files(conflict) == before
    assert git(conflict, "status", "--porcelain") == ""
    assert not (conflict / ".git/CHERRY_PICK_HEAD").exists()


def test_rename_into_a_folder_that_is_a_link_now_can_be_undone(
    make_project: MakeProject, fastproj: Fastproj, fork: Path
) -> None:
    """Git alone leaves a state that `git cherry-pick --abort` refuses to undo."""
    folder = make_project("v0.3.0")
    (folder / "shared").mkdir()
    (folder / "configs").rename(folder / "shared/old")
    (folder / "shared/old/default.yaml").rename(folder / "shared/mine.yaml")
    (folder / "shared/old").rmdir()
    (folder / "configs").symlink_to("shared")
    commit(folder)
    git(fork, "mv", "project/configs/default.yaml", "project/configs/base.yaml")
    edit(fork / "project/configs/base.yaml", "workers: 4", "workers: 8")
    (fork / "project/configs/more.yaml").write_text("more: 1\n")
    commit(fork)
    git(fork, "tag", "v0.4.0")
    before = read_files(folder)
    result = fastproj(
        "update",
        "--template",
        str(fork),
        cwd=folder,
        status=CONFLICTS,
    )
    assert "workers: 8" in (folder / "shared/mine.yaml").read_text()
    assert "is not renamed to configs/base.yaml, as configs is no folder here" in result.stdout
    undo = result.stdout.splitlines()[-1]
    run_undo(folder, undo)
    assert read_files(folder) == before


@pytest.mark.parametrize("place", [".gitattributes", ".git/info/attributes"])
def test_merge_driver_of_the_user_applies(
    place: str, make_project: MakeProject, fastproj: Fastproj
) -> None:
    folder = make_project()
    git(
        folder,
        "config",
        "merge.both.driver",
        "echo said by the driver; cat %A %B > both && mv both %A",
    )
    (folder / ".git/info").mkdir(exist_ok=True)
    (folder / place).write_text("engine.py merge=both\n")
    edited_same_line(folder)
    commit(folder)
    fastproj("update", cwd=folder)
    text = (folder / ENGINE).read_text()
    assert text.count("def part_0():") == 2
    assert '"""Mine, and of release 1."""' in text
    assert '"""Of release 3."""' in text


def test_conflict_style_of_the_user_applies(make_project: MakeProject, fastproj: Fastproj) -> None:
    folder = make_project()
    git(folder, "config", "merge.conflictStyle", "diff3")
    edited_same_line(folder)
    commit(folder)
    fastproj("update", cwd=folder, status=CONFLICTS)
    assert "\n||||||| " in (folder / ENGINE).read_text()


def test_bare_repository_in_a_clone_runs_nothing(
    make_project: MakeProject, fastproj: Fastproj, tmp_path: Path
) -> None:
    """Git would read the settings of one in the project's folder, or below it."""
    top = tmp_path / "clone"
    top.mkdir()
    folder = make_project().rename(top / "proj")
    shutil.rmtree(folder / ".git")
    git(top, "init", "-q")
    payload = f"touch {tmp_path}/hacked; cat"
    for place in (folder, folder / "configs"):
        for name in ("objects", "refs"):
            (place / name).mkdir(parents=True)
            (place / name / "keep").touch()
        (place / "HEAD").write_text("ref: refs/heads/main\n")
        (place / "config").write_text(
            "[core]\nrepositoryformatversion = 0\nbare = false\n"
            f'worktree = {folder}\nfsmonitor = "{payload}"\n'
            f'[filter "x"]\nclean = "{payload}"\nsmudge = "{payload}"\n'
        )
    (folder / ".gitattributes").write_text("* filter=x\n")
    commit(top)
    for command in (["status"], ["components"], ["update", "--dry-run"], ["update"]):
        for place in (folder, folder / "configs"):
            result = fastproj(*command, cwd=place, status=1)
            assert not (tmp_path / "hacked").exists(), command
            assert "safe.bareRepository" in result.stderr


def test_stale_time_of_a_file_is_no_change(make_project: MakeProject, fastproj: Fastproj) -> None:
    folder = make_project()
    edited_another_function(folder)
    commit(folder)
    for path in read_files(folder):
        (folder / path).touch()
    fastproj("update", cwd=folder)


def test_second_update_waits_for_the_first_to_be_committed(
    conflict: Path, fastproj: Fastproj
) -> None:
    before = project_state(conflict)
    for command in (["update"], ["update", "--dry-run"]):
        result = fastproj(*command, cwd=conflict, status=1)
        assert "git cherry-pick --abort" in result.stderr
    assert project_state(conflict) == before
