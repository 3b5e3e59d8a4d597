"""The attempts on a project: what is run in a state, and what must hold then."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import edits
import git_settings
import hostile_templates
from arena import Attempt
from edits import State
from project_state import harness
from updating import commit, git, read_files, unnamed_paths


def prepare(attempt: Attempt, state: State, committed: bool = True) -> None:
    """Bring the project into a state."""
    attempt.converted = state.__name__ in git_settings.CONVERTED
    state(attempt.project)
    if committed and git(attempt.project, "status", "--porcelain", "--ignored=no"):
        commit(attempt.project)
    if committed:
        (attempt.project / "scratch.txt").write_text("mine, never added\n")


def update_works(state: State, attempt: Attempt) -> None:
    """Report, update, and take the update back with the printed command."""
    prepare(attempt, state)
    before, mine, without_objects = attempt.state(), attempt.entries(), attempt.state(objects=False)
    dry = _only_report(attempt, before)
    files = read_files(attempt.project)
    done = attempt.fastproj("update")
    if done.stderr or done.returncode != dry:
        attempt.report(
            "surprises", f"update ends with {done.returncode}, dry-run with {dry}: {done.stderr}"
        )
        attempt.unchanged(without_objects, "a refused update", objects=False)
        return
    attempt.merged(files, mine, "update")
    for path in unnamed_paths(attempt.project, done.stdout):
        attempt.report("surprises", f"the output does not name {path!r}")
    attempt.no_leftovers("update")
    updated = attempt.state()
    if attempt.fastproj("status").stderr:
        attempt.report("surprises", "status fails after the update")
    attempt.unchanged(updated, "status")
    undo = done.stdout.strip().splitlines()[-1]
    subprocess.run(  # noqa: S602
        undo, shell=True, cwd=attempt.project, env=harness(), capture_output=True, check=False
    )
    if attempt.entries() != mine or read_files(attempt.project) != files:
        attempt.report(
            "wrong merges", f"the undo command {undo} leaves {attempt.git('status', '--porcelain')}"
        )


def _only_report(attempt: Attempt, before: dict[str, object]) -> int:
    """Run the commands that may not change anything, and return the exit status of the second."""
    attempt.fastproj("status")
    attempt.unchanged(before, "status")
    before = attempt.state(objects=False)
    done = attempt.fastproj("update", "--dry-run")
    attempt.unchanged(before, "dry-run", objects=False)
    return done.returncode


def update_is_refused(state: State, message: str, attempt: Attempt) -> None:
    """Report, and try to update."""
    prepare(attempt, state, committed=False)
    before, without_objects = attempt.state(), attempt.state(objects=False)
    _only_report(attempt, before)
    done = attempt.fastproj("update")
    if done.returncode != 1 or message not in done.stderr:
        attempt.report(
            "surprises", f"update is not refused with {message!r} but {done.stdout}{done.stderr}"
        )
    attempt.unchanged(without_objects, "a refused update", objects=False)


def answers_are_refused(content: bytes, reason: str, attempt: Attempt) -> None:
    """Read an answers file."""
    file = attempt.project / ".copier-answers.yml"
    file.write_bytes(b"_src_path: ~/x.bundle\n_commit: v0.1.0\n" + content)
    commit(attempt.project)
    before = attempt.state()
    for command in (["status"], ["update"], ["update", "--dry-run"], ["components"]):
        done = attempt.fastproj(*command)
        if done.returncode != 1 or reason not in done.stderr:
            attempt.report(
                "surprises",
                f"{command} is not refused with {reason!r} but {done.stdout}{done.stderr}",
            )
        attempt.unchanged(before, " ".join(command))


def template_is_harmless(change: Callable[[Path], None], attempt: Attempt) -> None:
    """Make a project from a template, or update to it; then use git as its user does."""
    fork = attempt.place / "fork"
    git(attempt.place, "clone", "-q", str(attempt.arena.bundle), str(fork))
    hostile_templates.publish(change, fork)
    out = attempt.place / "out"
    out.mkdir()
    done = attempt.fastproj("new", "made", "--yes", "--template", str(fork), "--output", str(out))
    if done.returncode > 0 and os.listdir(out):
        attempt.report("leftovers", f"new: {os.listdir(out)}")
    if not done.returncode:
        _use_git(attempt, out / "made")
    prepare(attempt, edits.edited_another_function)
    without_objects, files = attempt.state(objects=False), read_files(attempt.project)
    attempt.fastproj("update", "--dry-run", "--template", str(fork))
    attempt.unchanged(without_objects, "dry-run", objects=False)
    done = attempt.fastproj("update", "--template", str(fork))
    if done.returncode < 0:
        return  # it hung
    attempt.no_leftovers("update")
    if done.stderr:
        attempt.unchanged(without_objects, "a refused update", objects=False)
        return
    now, earlier = attempt.state(objects=False)["git"], without_objects["git"]
    assert isinstance(now, dict)
    in_conflict = {
        str(attempt.git_dir() / name)
        for name in ("CHERRY_PICK_HEAD", "MERGE_MSG", "logs/CHERRY_PICK_HEAD")
    }
    if {path: content for path, content in now.items() if path not in in_conflict} != earlier:
        attempt.report("lost edits", "update changed files of git")
    kept = {path: it for path, it in files.items() if path in ("scratch.txt", "src/proj/engine.py")}
    for path, (_, content) in kept.items():
        now = read_files(attempt.project).get(path, ("", b""))[1]
        if not {it for it in content.splitlines() if b"mine" in it} <= set(now.splitlines()):
            attempt.report("lost edits", f"update: {path}")
    _use_git(attempt, attempt.project)


def template_change_arrives(
    change: Callable[[Path], None], state: State, expected: dict[str, str], attempt: Attempt
) -> None:
    """Update to a release that replaces files by folders, and look for what it brings."""
    fork = attempt.place / "fork"
    git(attempt.place, "clone", "-q", str(attempt.arena.bundle), str(fork))
    hostile_templates.publish(change, fork)
    prepare(attempt, state)
    done = attempt.fastproj("update", "--template", str(fork))
    if done.stderr:
        attempt.report("surprises", f"update fails: {done.stderr}")
    files = read_files(attempt.project)
    for path, text in expected.items():
        if files.get(path, ("", b""))[1] != text.encode():
            attempt.report("wrong merges", f"update: {path} does not arrive")
    attempt.no_leftovers("update")


def _use_git(attempt: Attempt, project: Path) -> None:
    """Look at a project, and commit, with no protection from its settings."""
    home = {
        "HOME": str(attempt.place / "home"),
        "GIT_CONFIG_NOSYSTEM": "1",
        "PATH": os.environ["PATH"],
    }
    for command in (
        ["status"],
        ["diff", "HEAD"],
        ["add", "-A"],
        ["commit", "-qm", "x"],
        ["checkout", "-qb", "y"],
    ):
        subprocess.run(["git", *command], cwd=project, env=home, capture_output=True, check=False)
    attempt.notice_code("git in the project")
