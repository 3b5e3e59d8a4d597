"""`fastproj update` through the real program keeps every edit, from every release and in every state of a project."""

import subprocess

import pytest
import yaml
from edits import (
    PACKAGE,
    State,
    added_same_name,
    binary_on_both_sides,
    crlf,
    crlf_and_renamed,
    deleted,
    deleted_folder,
    detached,
    edited_far,
    edited_in_a_block,
    edited_near,
    edited_same_line,
    edited_what_goes,
    failing_hooks,
    file_for_a_folder,
    ignored_elsewhere,
    made_a_link,
    mode_changed,
    odd_names,
    own_attributes,
    own_binary,
    own_model,
    renamed,
    repeated_blocks,
    untouched,
    untracked,
)
from program import Fastproj
from updating import VERSIONS, Made, commit, files_of, git, lost, read_answers

STATES = [
    untouched,
    edited_far,
    edited_near,
    edited_same_line,
    deleted,
    deleted_folder,
    renamed,
    edited_what_goes,
    binary_on_both_sides,
    own_binary,
    ignored_elsewhere,
    untracked,
    repeated_blocks,
    edited_in_a_block,
    added_same_name,
    file_for_a_folder,
    crlf,
    crlf_and_renamed,
    mode_changed,
    made_a_link,
    own_model,
    odd_names,
    detached,
    failing_hooks,
    own_attributes,
]


# Those that can be true at once; each for itself is tried from the first release.
TOGETHER = [
    [untouched],
    [edited_far, deleted_folder, binary_on_both_sides, own_binary, ignored_elsewhere, own_model, added_same_name],
    [renamed, edited_what_goes, repeated_blocks, file_for_a_folder, odd_names, detached],
    [edited_near, edited_in_a_block, failing_hooks],
    [edited_same_line, mode_changed, own_attributes],
    [crlf, made_a_link],
    [crlf_and_renamed],
    [deleted],
    [untracked],
]
CASES = [("v0.1.0", [state]) for state in STATES] + [("v0.2.0", states) for states in TOGETHER]


def test_every_state_is_tried_from_every_release() -> None:
    tried = {version: {state for at, states in CASES if at == version for state in states} for version, _ in CASES}
    assert tried == {version: set(STATES) for version in VERSIONS[:-1]}


@pytest.mark.parametrize(
    ("version", "states"), CASES, ids=[f"{at}-{'-'.join(state.__name__ for state in states)}" for at, states in CASES]
)
def test_nothing_is_lost(version: str, states: list[State], made: Made, fastproj: Fastproj) -> None:
    folder = made(version)
    rendered = files_of(folder)
    for state in states:
        state(folder)
    if untracked not in states:
        git(folder, "add", "-A")
        if git(folder, "status", "--porcelain"):
            commit(folder)
    before, head = files_of(folder), git(folder, "rev-parse", "HEAD")
    (folder / ".git/hooked").unlink(missing_ok=True)
    done = fastproj("update", "--yes", cwd=folder)
    assert not (folder / ".git/hooked").exists(), "no hook ran"
    conflicts = bool(git(folder, "ls-files", "-u"))
    assert done.returncode == int(conflicts), done.stdout + done.stderr
    assert done.stderr == ""
    assert ("CONFLICT" in done.stdout) == conflicts
    assert lost(folder, before, rendered) == []
    assert git(folder, "rev-parse", "HEAD") == head
    changed = {line[3:] for line in git(folder, "status", "--porcelain").splitlines() if line[1] != " "}
    unmerged = {line.partition("\t")[2] for line in git(folder, "ls-files", "-u").splitlines()}
    assert changed <= {*unmerged, "? scratch.txt", "scratch.txt"}, "all is staged"
    assert not (folder / ".git/fastproj").exists()
    assert read_answers(folder)["_commit"] == "v0.3.0"

    undo = done.stdout.strip().splitlines()[-1]
    subprocess.run(undo, shell=True, check=failing_hooks not in states, cwd=folder)  # noqa: S602
    assert git(folder, "status", "--porcelain", "--untracked-files=no") == ""
    assert files_of(folder) == before


def test_an_edit_stays_in_its_block(made: Made, fastproj: Fastproj) -> None:
    folder = made("v0.1.0")
    edited_in_a_block(folder)
    commit(folder)
    assert fastproj("update", "--yes", cwd=folder).returncode == 0
    blocks = yaml.safe_load((folder / "configs/default.yaml").read_text())
    assert {name: block["rate"] for name, block in blocks.items()} == {
        "train": 0.1,
        "tune": 0.1,
        "val": 0.1,
        "test": 0.7,
    }


@pytest.mark.parametrize(("state", "name"), [(crlf, "engine.py"), (crlf_and_renamed, "motor.py")])
def test_line_ends_are_no_conflict(state: State, name: str, made: Made, fastproj: Fastproj) -> None:
    folder = made("v0.1.0")
    state(folder)
    commit(folder)
    done = fastproj("update", "--yes", cwd=folder)
    assert done.returncode == 0, done.stdout
    content = (folder / PACKAGE / name).read_bytes()
    assert b'"""Of release 3."""\r\n' in content
    assert b"return 21  # mine\r\n" in content
    assert content.count(b"\n") == content.count(b"\r\n")


def test_a_dry_run_writes_nothing(made: Made, fastproj: Fastproj) -> None:
    folder = made()
    edited_same_line(folder)
    commit(folder)

    def all_files() -> dict[str, bytes]:
        return {str(file): file.read_bytes() for file in folder.rglob("*") if file.is_file()}

    before = all_files()
    shown = fastproj("update", "--yes", "--dry-run", cwd=folder)
    assert all_files() == before, "not even in git's folder"
    done = fastproj("update", "--yes", cwd=folder)
    assert shown.returncode == done.returncode == 1
    assert done.stdout.startswith(shown.stdout.replace("Would update", "Updated").rstrip())
