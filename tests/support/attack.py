"""Attack the program: states of a project x commands x kills x ways out, hostile answers and hostile templates.

`python tests/support/attack.py [PART_OF_A_NAME ...]` makes all attempts, or those with a part in their name, prints what
was found, and exits with 1 if that is anything. No run may lose an edit, merge wrongly, execute code of a template or of
a repository, end with a traceback, hang, or leave something behind.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from pathlib import Path

import edits
import git_settings
import hostile_templates
from arena import KINDS, NOBODY, Arena, Attempt, harness
from edits import State
from hostile_answers import HOSTILE
from refused import REFUSED
from updating import commit, git, read_files
from ways_out import WAYS_OUT

Action = Callable[[Attempt], None]
EDITS: list[State] = [
    edits.unedited,
    edits.edited_another_function,
    edits.edited_adjacent_line,
    edits.edited_same_line,
    edits.deleted,
    edits.renamed,
    edits.edited_removed_files,
    edits.edited_binary,
    edits.added_binary,
    edits.added_ignored_files,
    edits.edited_repeated_blocks,
    edits.edited_one_of_equal_blocks,
    edits.added_file_of_the_same_name,
    edits.file_instead_of_folder,
    edits.crlf,
    edits.renamed_with_crlf,
    edits.mode_changed,
    edits.replaced_by_link,
    edits.own_model,
    edits.unusual_names,
    edits.detached,
    edits.failing_hooks,
    edits.own_attributes,
    edits.deleted_folder,
]
KILLED: list[State] = [
    edits.edited_another_function,
    edits.edited_same_line,
    edits.renamed,
    edits.deleted,
    edits.file_instead_of_folder,
    edits.mode_changed,
    git_settings.sha256,
    git_settings.linked_work_tree,
    git_settings.separate_git_dir,
    git_settings.in_a_subfolder,
    git_settings.autocrlf,
]
POINTS = [("record", "1"), ("_lock", "1"), *(("replace", calls) for calls in ("1", "3", "6", "9", "12"))]


def prepare(attempt: Attempt, state: State, committed: bool = True) -> None:
    """Bring the project into a state."""
    attempt.converted = state.__name__ in git_settings.CONVERTED
    state(attempt.project)
    if committed and git(attempt.project, "status", "--porcelain", "--ignored=no"):
        commit(attempt.project)
    if committed:
        (attempt.project / "scratch.txt").write_text("mine, never added\n")
    if attempt.as_nobody:
        for root, folders, names in os.walk(attempt.place):
            for place in (root, *(os.path.join(root, name) for name in (*folders, *names))):
                os.chown(place, NOBODY, NOBODY, follow_symlinks=False)


def update_works(state: State, attempt: Attempt) -> None:
    """Report, update, and take the update back with the printed command."""
    prepare(attempt, state)
    before, mine = attempt.state(), attempt.entries()
    dry = _only_report(attempt, before)
    files = read_files(attempt.project)
    done = attempt.fastproj("update", "--yes")
    if done.stderr or done.returncode != dry:
        attempt.report("surprises", f"update ends with {done.returncode}, dry-run with {dry}: {done.stderr}")
        return
    attempt.merged(files, mine, "update")
    attempt.no_leftovers("update")
    updated = attempt.state()
    if attempt.fastproj("status").stderr:
        attempt.report("surprises", "status fails after the update")
    attempt.unchanged(updated, "status")
    undo = done.stdout.strip().splitlines()[-1]
    subprocess.run(undo, shell=True, cwd=attempt.project, env=harness(), capture_output=True, check=False)  # noqa: S602
    if attempt.entries() != mine or read_files(attempt.project) != files:
        attempt.report("wrong merges", f"the undo command {undo} leaves {attempt.git('status', '--porcelain')}")


def _only_report(attempt: Attempt, before: dict[str, object]) -> int:
    """Run the commands that may not change anything, and return the exit status of the second."""
    attempt.fastproj("status")
    attempt.unchanged(before, "status")
    done = attempt.fastproj("update", "--yes", "--dry-run")
    attempt.unchanged(before, "dry-run")
    return done.returncode


def update_is_refused(state: State, attempt: Attempt) -> None:
    """Report, and try to update."""
    prepare(attempt, state, committed=False)
    before, without_objects = attempt.state(), attempt.state(objects=False)
    _only_report(attempt, before)
    done = attempt.fastproj("update", "--yes")
    if done.returncode != 1 or not done.stderr:
        attempt.report("surprises", f"update was not refused but ended with {done.returncode}: {done.stdout}")
    attempt.unchanged(without_objects, "a refused update", objects=False)


def answers_are_refused(content: bytes, attempt: Attempt) -> None:
    """Read an answers file."""
    file = attempt.project / ".copier-answers.yml"
    file.write_bytes(b"_src_path: ~/x.bundle\n_commit: v0.1.0\n" + content)
    commit(attempt.project)
    before = attempt.state()
    for command in (["status"], ["update", "--yes"], ["update", "--dry-run"], ["adopt", "--dry-run"]):
        done = attempt.fastproj(*command)
        if done.returncode != 1 or not done.stderr:
            attempt.report("surprises", f"{command} was not refused")
        attempt.unchanged(before, " ".join(command))


def template_is_harmless(change: Callable[[Path], None], attempt: Attempt) -> None:
    """Make a project from a template, or update to it; then use git as its user does."""
    fork = attempt.place / "fork"
    git(attempt.place, "clone", "-q", str(attempt.arena.bundle), str(fork))
    hostile_templates.publish(change, fork)
    out = attempt.place / "out"
    out.mkdir()
    done = attempt.fastproj("new", "made", "--yes", "--template", str(fork), "--output", str(out))
    if done.returncode and os.listdir(out):
        attempt.report("leftovers", f"new: {os.listdir(out)}")
    if not done.returncode:
        _use_git(attempt, out / "made")
    prepare(attempt, edits.edited_another_function)
    before, without_objects, files = attempt.state(), attempt.state(objects=False), read_files(attempt.project)
    attempt.fastproj("update", "--yes", "--dry-run", "--template", str(fork))
    attempt.unchanged(before, "dry-run")
    done = attempt.fastproj("update", "--yes", "--template", str(fork))
    attempt.no_leftovers("update")
    if done.stderr:
        attempt.unchanged(without_objects, "a refused update", objects=False)
        return
    after = attempt.state(objects=False)
    if after["git"] != without_objects["git"]:
        attempt.report("lost edits", "update changed files of git")
    kept = {path: it for path, it in files.items() if path in ("scratch.txt", "src/proj/engine.py")}
    for path, (_, content) in kept.items():
        now = read_files(attempt.project).get(path, ("", b""))[1]
        if not {it for it in content.splitlines() if b"mine" in it} <= set(now.splitlines()):
            attempt.report("lost edits", f"update: {path}")
    _use_git(attempt, attempt.project)


def _use_git(attempt: Attempt, project: Path) -> None:
    """Look at a project, and commit, with no protection from its settings."""
    home = {"HOME": str(attempt.place / "home"), "GIT_CONFIG_NOSYSTEM": "1", "PATH": os.environ["PATH"]}
    for command in (["status"], ["diff", "HEAD"], ["add", "-A"], ["commit", "-qm", "x"], ["checkout", "-qb", "y"]):
        subprocess.run(["git", *command], cwd=project, env=home, capture_output=True, check=False)
    attempt.notice_code("git in the project")


def update_is_killed(state: State, point: tuple[str, str], way_out: State, attempt: Attempt) -> None:
    """Kill an update, and go on from there."""
    prepare(attempt, state)
    before, mine, files = attempt.state(objects=False), attempt.entries(), read_files(attempt.project)
    done = attempt.fastproj("update", "--yes", kill=point)
    if done.returncode != -9:
        attempt.report("surprises", f"the update was not killed but ended with {done.returncode}: {done.stderr}")
        return
    way_out(attempt, before, files, mine)  # type: ignore[call-arg, arg-type]


def cases() -> dict[str, Action]:
    """Return all attempts by name."""
    found: dict[str, Action] = {}
    for state in EDITS:
        found[f"edit {state.__name__}"] = partial(update_works, state)
    for state in git_settings.WORKING:
        found[f"setting {state.__name__}"] = partial(update_works, state)
    for state in (git_settings.read_only_files, git_settings.read_only_home):
        found[f"nobody {state.__name__}"] = partial(update_works, state)
    for state in (git_settings.read_only_folder, git_settings.read_only_git):
        found[f"nobody {state.__name__}"] = partial(update_is_refused, state)
    for state in (*(state for state, _ in REFUSED), *git_settings.REFUSING):
        found[f"refused {state.__name__}"] = partial(update_is_refused, state)
    for name, (text, _) in HOSTILE.items():
        content = text if isinstance(text, bytes) else text.encode()
        found[f"answers {name}"] = partial(answers_are_refused, content)
    for change in (*hostile_templates.TEMPLATES, *hostile_templates.EXPENSIVE):
        found[f"template {change.__name__}"] = partial(template_is_harmless, change)
    for row, state in enumerate(KILLED):
        for column, way_out in enumerate(WAYS_OUT):
            if (row + column) % 2:  # half of them: each state with each second way, each way with each second state
                continue
            point = POINTS[(row + column * 3) % len(POINTS)]
            name = f"killed {state.__name__} {'-'.join(point)} {way_out.__name__}"
            found[name] = partial(update_is_killed, state, point, way_out)  # type: ignore[arg-type]
    return found


def attempt(arena: Arena, name: str) -> tuple[int, list[tuple[str, str]]]:
    """Make an attempt, and return the number of runs and what was found."""
    os.environ |= harness()
    with tempfile.TemporaryDirectory(prefix="attack-", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o755)
        made = Attempt(name, arena, Path(folder) / "case", as_nobody=name.startswith("nobody"))
        try:
            cases()[name](made)
        except (AssertionError, OSError, ValueError, LookupError) as error:
            made.report("surprises", f"the attempt itself failed: {type(error).__name__}: {error}")
    return made.runs, made.found


def main() -> None:
    """Make the attempts in two processes, and print the counts."""
    start, runs, found = time.monotonic(), 0, list[tuple[str, str]]()
    names = [name for name in cases() if not sys.argv[1:] or any(part in name for part in sys.argv[1:])]
    folder = Path(tempfile.mkdtemp(prefix="arena-"))
    os.environ |= harness()
    try:
        arena = Arena.make(folder)
        with ProcessPoolExecutor(2) as pool:
            for done in as_completed([pool.submit(attempt, arena, name) for name in names]):
                runs, found = runs + done.result()[0], found + done.result()[1]
    finally:
        shutil.rmtree(folder)
    for kind, what in sorted(found):
        print(f"{kind}: {what}")
    print(f"\n{runs} runs in {len(names)} attempts, {time.monotonic() - start:.0f} s")
    for kind in KINDS:
        print(f"{sum(it == kind for it, _ in found):5}  {kind}")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
