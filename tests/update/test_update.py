"""`fastproj update` keeps every edit, from every release and in every state of a project."""

import edits
import pytest
import yaml
from edits import PACKAGE, State
from fastproj.errors import CONFLICTS
from program import Fastproj
from updating import (
    MakeProject,
    commit,
    git,
    lost_edits,
    read_answers,
    read_files,
    run_undo,
    unnamed_paths,
)

# Those that can be true at once.
COMBINED = [
    [edits.unedited],
    [
        edits.edited_another_function,
        edits.deleted_folder,
        edits.edited_binary,
        edits.added_binary,
        edits.added_ignored_files,
        edits.own_model,
        edits.added_file_of_the_same_name,
    ],
    [
        edits.renamed,
        edits.edited_removed_files,
        edits.edited_repeated_blocks,
        edits.file_instead_of_folder,
        edits.unusual_names,
        edits.detached,
    ],
    [edits.edited_adjacent_line, edits.edited_one_of_equal_blocks, edits.failing_hooks],
    [edits.edited_same_line, edits.mode_changed, edits.own_attributes],
    [edits.crlf, edits.replaced_by_link],
    [edits.renamed_with_crlf],
    [edits.deleted],
    [edits.renamed_package, edits.linked_folder, edits.controlling_names],
    [
        edits.linked_folder_at_new_path,
        edits.file_instead_of_rendered_folder,
        edits.crlf_of_renamed_file,
    ],
    [edits.renamed_on_both_sides],
    [edits.untracked],
]
CASES = [("v0.1.0", states) for states in COMBINED] + [
    ("v0.2.0", states) for states in COMBINED[:4]
]


@pytest.mark.parametrize(
    ("version", "states"),
    CASES,
    ids=lambda value: value if isinstance(value, str) else "-".join(it.__name__ for it in value),
)
def test_update_loses_no_edit(
    version: str, states: list[State], make_project: MakeProject, fastproj: Fastproj
) -> None:
    folder = make_project(version)
    rendered = read_files(folder)
    for state in states:
        state(folder)
    if edits.untracked not in states:
        git(folder, "add", "-A")
        if git(folder, "status", "--porcelain"):
            commit(folder)
    before = read_files(folder)
    head = git(folder, "rev-parse", "HEAD")
    (folder / ".git/hooked").unlink(missing_ok=True)
    result = fastproj("update", cwd=folder, status=None)
    assert not (folder / ".git/hooked").exists(), "no hook ran"
    conflicts = bool(git(folder, "ls-files", "-u"))
    assert result.returncode == (CONFLICTS if conflicts else 0), result.stdout + result.stderr
    assert unnamed_paths(folder, result.stdout) == []
    assert result.stderr == ""
    assert ("CONFLICT" in result.stdout) == conflicts
    assert lost_edits(folder, before, rendered) == []
    assert git(folder, "rev-parse", "HEAD") == head
    changed = {
        line[3:] for line in git(folder, "status", "--porcelain").splitlines() if line[1] != " "
    }
    unmerged = {line.partition("\t")[2] for line in git(folder, "ls-files", "-u").splitlines()}
    assert changed <= {*unmerged, "? scratch.txt", "scratch.txt"}, "all is staged"
    assert read_answers(folder)["_commit"] == "v0.3.0"

    undo = result.stdout.strip().splitlines()[-1]
    run_undo(folder, undo, check=edits.failing_hooks not in states)
    assert git(folder, "status", "--porcelain", "--untracked-files=no") == ""
    assert read_files(folder) == before


def test_edit_stays_in_its_block(make_project: MakeProject, fastproj: Fastproj) -> None:
    folder = make_project("v0.1.0")
    edits.edited_one_of_equal_blocks(folder)
    commit(folder)
    fastproj("update", cwd=folder)
    blocks = yaml.safe_load((folder / "configs/default.yaml").read_text())
    assert {name: block["rate"] for name, block in blocks.items()} == {
        "train": 0.1,
        "tune": 0.1,
        "val": 0.1,
        "test": 0.7,
    }


@pytest.mark.parametrize(
    ("state", "name"), [(edits.crlf, "engine.py"), (edits.renamed_with_crlf, "motor.py")]
)
def test_line_endings_cause_no_conflict(
    state: State, name: str, make_project: MakeProject, fastproj: Fastproj
) -> None:
    folder = make_project("v0.1.0")
    state(folder)
    commit(folder)
    fastproj("update", cwd=folder)
    content = (folder / PACKAGE / name).read_bytes()
    assert b'"""Of release 3."""\r\n' in content
    assert b"return 21  # mine\r\n" in content
    assert content.count(b"\n") == content.count(b"\r\n")


def test_line_endings_follow_a_rename_of_the_template(
    make_project: MakeProject, fastproj: Fastproj
) -> None:
    folder = make_project("v0.1.0")
    edits.crlf_of_renamed_file(folder)
    commit(folder)
    fastproj("update", cwd=folder)
    content = (folder / PACKAGE / "train.py").read_bytes()
    assert b"# step 3, mine, of the loop\r\n" in content
    assert b"# release 3\r\n" in content
    assert content.count(b"\n") == content.count(b"\r\n")


def test_dry_run_changes_nothing(make_project: MakeProject, fastproj: Fastproj) -> None:
    folder = make_project()
    edits.edited_same_line(folder)
    commit(folder)

    def all_files() -> dict[str, bytes]:
        found = (
            file
            for file in folder.rglob("*")
            if file.is_file() and folder / ".git/objects" not in file.parents
        )
        return {str(file): file.read_bytes() for file in found}

    before = all_files()
    shown = fastproj("update", "--dry-run", cwd=folder, status=CONFLICTS)
    assert all_files() == before
    result = fastproj("update", cwd=folder, status=CONFLICTS)
    assert result.stdout.startswith(shown.stdout.replace("Would update", "Updated").rstrip())
