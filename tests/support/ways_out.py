"""What people do after an update was killed: functions of the attempt, and of the project before the update."""

import shutil
from collections.abc import Callable
from typing import Any

from arena import Attempt
from observed import Entries
from updating import commit, git, read_files

Files = dict[str, tuple[str, bytes]]
WayOut = Callable[[Attempt, dict[str, Any], Files, Entries], None]


def finish(attempt: Attempt, before: dict[str, Any], files: Files, mine: Entries) -> None:
    """Continue; the result is that of an update that was not killed."""
    _end(attempt, "--continue")
    attempt.merged(files, mine, "--continue")
    attempt.no_leftovers("--continue")
    state = attempt.state(objects=False)
    git(attempt.project, "reset", "-q", "--hard")
    attempt.fastproj("update", "--yes")
    attempt.unchanged({**state, "git": attempt.state(objects=False)["git"]}, "another end of the update", objects=False)


def abort(attempt: Attempt, before: dict[str, Any], files: Files, mine: Entries) -> None:
    """Abort; nothing of the update remains."""
    _end(attempt, "--abort")
    attempt.unchanged(before, "--abort", objects=False)
    attempt.no_leftovers("--abort")
    _update(attempt, files, mine)


def look(attempt: Attempt, before: dict[str, Any], files: Files, mine: Entries) -> None:
    """Look at it, and try to update again, which changes nothing."""
    state = attempt.state()
    done = attempt.fastproj("status")
    if done.stderr or "pending " not in done.stdout:
        attempt.report("surprises", f"status does not report the pending update: {done.stderr}")
    attempt.unchanged(state, "status")
    for options in (["--yes", "--dry-run"], ["--yes"], ["--gpus", "1", "--yes"]):
        done = attempt.fastproj("update", *options)
        if done.returncode != 1 or "update --continue" not in done.stderr or "update --abort" not in done.stderr:
            attempt.report("surprises", f"update {options} was not refused: {done.stderr}{done.stdout}")
        attempt.unchanged(state, f"update {options}")
    finish(attempt, before, files, mine)


def reset_and_commit(attempt: Attempt, before: dict[str, Any], files: Files, mine: Entries) -> None:
    """Recover with git, and work on."""
    _reset(attempt)
    (attempt.project / "later.txt").write_text("mine, and later\n")
    commit(attempt.project)
    state, files, mine = attempt.state(), read_files(attempt.project), attempt.entries()
    if attempt.fastproj("status").stderr:
        attempt.report("surprises", "status fails")
    attempt.unchanged(state, "status")
    attempt.fastproj("update", "--yes", "--dry-run")
    attempt.unchanged(state, "dry-run")
    _dropped(attempt)
    _update(attempt, files, mine)


def reset(attempt: Attempt, before: dict[str, Any], files: Files, mine: Entries) -> None:
    """Recover with git, then continue."""
    _reset(attempt)
    files = read_files(attempt.project)
    finish(attempt, before, files, mine)


def reset_and_abort(attempt: Attempt, before: dict[str, Any], files: Files, mine: Entries) -> None:
    """Recover with git, then abort."""
    _reset(attempt)
    state = read_files(attempt.project)
    _end(attempt, "--abort")
    if read_files(attempt.project) != state:
        attempt.report("lost edits", "--abort after git reset changed files")
    attempt.no_leftovers("--abort")


def another_branch(attempt: Attempt, before: dict[str, Any], files: Files, mine: Entries) -> None:
    """Work on another branch, where the interrupted update has no place."""
    (attempt.lock()).unlink(missing_ok=True)
    git(attempt.project, "checkout", "-q", "-f", "-b", "other")
    git(attempt.project, "clean", "-qfdx")
    state = attempt.state(objects=False)
    for option in ("--continue", "--yes"):
        done = attempt.fastproj("update", option)
        if option == "--continue" and (done.returncode != 1 or "dropped" not in done.stderr):
            attempt.report("surprises", f"the update is not dropped on another branch: {done.stderr}")
        if option == "--continue":
            attempt.unchanged({**state, "git": attempt.state(objects=False)["git"]}, "dropped", objects=False)
    attempt.no_leftovers("another branch")


def edit_then_finish(attempt: Attempt, before: dict[str, Any], files: Files, mine: Entries) -> None:
    """Save files before continuing: they stay as they are."""
    own = {"README.md": "saved after the kill\n", "docs/new.md": "made after the kill\n", "mine.txt": "made\n"}
    for path, text in own.items():
        place = attempt.project / path
        if place.parent.is_file():
            continue
        place.parent.mkdir(exist_ok=True)
        place.unlink(missing_ok=True)
        place.write_text(text)
    _end(attempt, "--continue")
    for path, text in own.items():
        if (attempt.project / path).is_file() and (attempt.project / path).read_text() != text:
            attempt.report("lost edits", f"--continue overwrote {path}, which was edited after the kill")
    attempt.no_leftovers("--continue")


def edit_then_abort(attempt: Attempt, before: dict[str, Any], files: Files, mine: Entries) -> None:
    """Save files before aborting: they stay as they are."""
    (attempt.project / "README.md").unlink(missing_ok=True)
    (attempt.project / "README.md").write_text("saved after the kill\n")
    _end(attempt, "--abort")
    if (attempt.project / "README.md").read_text() != "saved after the kill\n":
        attempt.report("lost edits", "--abort overwrote README.md, which was edited after the kill")
    attempt.no_leftovers("--abort")


def killed_again(attempt: Attempt, before: dict[str, Any], files: Files, mine: Entries) -> None:
    """Kill the continuation, then its undoing, then continue."""
    for option, calls in (("--continue", "2"), ("--abort", "2"), ("--continue", "4"), ("--abort", "1")):
        attempt.fastproj("update", option, kill=("replace", calls))
    if attempt.git("for-each-ref", "refs/worktree"):
        finish(attempt, before, files, mine)
    else:
        attempt.no_leftovers("killed again")


def maintenance(attempt: Attempt, before: dict[str, Any], files: Files, mine: Entries) -> None:
    """Collect garbage, and lose the scratch folder, before continuing."""
    git(attempt.project, "gc", "-q", "--prune=now")
    shutil.rmtree(attempt.git_dir() / "fastproj", ignore_errors=True)
    done = attempt.fastproj("update", "--abort")
    if done.stderr and "index.lock" in done.stderr:
        attempt.lock().unlink()
        done = attempt.fastproj("update", "--abort")
    if done.stderr:
        attempt.report("surprises", f"--abort fails without its scratch folder: {done.stderr}")
    missing = [path for path in files if path not in read_files(attempt.project)]
    if missing:
        attempt.report("lost edits", f"--abort without its scratch folder misses {missing}")
    attempt.no_leftovers("--abort")


WAYS_OUT: list[WayOut] = [
    finish,
    abort,
    look,
    reset_and_commit,
    reset,
    reset_and_abort,
    another_branch,
    edit_then_finish,
    edit_then_abort,
    killed_again,
    maintenance,
]


def _end(attempt: Attempt, option: str) -> None:
    done = attempt.fastproj("update", option)
    if done.stderr:
        attempt.report("surprises", f"update {option} fails: {done.stderr}")


def _reset(attempt: Attempt) -> None:
    attempt.lock().unlink(missing_ok=True)
    git(attempt.project, "reset", "-q", "--hard")
    git(attempt.project, "clean", "-qfdx")


def _dropped(attempt: Attempt) -> None:
    state = attempt.state(objects=False)
    done = attempt.fastproj("update", "--yes")
    if done.returncode != 1 or "was dropped" not in done.stderr:
        attempt.report("surprises", f"the interrupted update is not dropped: {done.stderr}{done.stdout}")
    attempt.unchanged({**state, "git": attempt.state(objects=False)["git"]}, "dropped", objects=False)
    attempt.no_leftovers("dropped")


def _update(attempt: Attempt, files: Files, mine: Entries) -> None:
    done = attempt.fastproj("update", "--yes")
    if done.stderr:
        attempt.report("surprises", f"the next update fails: {done.stderr}")
        return
    attempt.merged(files, mine, "the next update")
    attempt.no_leftovers("the next update")
