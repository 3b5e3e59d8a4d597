"""Attack the program: states of a project x commands, hostile answers and hostile templates.

`python tests/support/attack.py [PART_OF_A_NAME ...]` makes all attempts, or those with a part in
their name, prints what was found, and exits with 1 if that is anything. No run may lose an edit,
merge wrongly, execute code of a template or of a repository, end with a traceback, hang, or leave
something behind.
"""

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from pathlib import Path

import edits
import git_settings
import hostile_settings
import hostile_templates
from arena import KINDS, Arena, Attempt
from attempts import (
    answers_are_refused,
    template_change_arrives,
    template_is_harmless,
    update_is_refused,
    update_works,
)
from edits import State
from hostile_answers import HOSTILE
from project_state import harness
from refused import REFUSED
from template_changes import CHANGES

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
    edits.renamed_package,
    edits.linked_folder,
    edits.linked_folder_at_new_path,
    edits.file_instead_of_rendered_folder,
    edits.crlf_of_renamed_file,
    edits.renamed_on_both_sides,
    edits.controlling_names,
]
FAST = [
    "setting fsmonitor_and_hooks",
    "permission read_only_folder",
    "template folder_at_answers",
]
"""Starts of the names of some attempts that together use each part of this program."""


def cases() -> dict[str, Action]:
    """Return all attempts by name."""
    found: dict[str, Action] = {}
    for state in EDITS:
        found[f"edit {state.__name__}"] = partial(update_works, state)
    for state in git_settings.WORKING:
        found[f"setting {state.__name__}"] = partial(update_works, state)
    for state in (hostile_settings.read_only_files, hostile_settings.read_only_home):
        found[f"permission {state.__name__}"] = partial(update_works, state)
    for state, message in (
        (hostile_settings.read_only_folder, "make it writable"),
        (hostile_settings.read_only_git, "git add failed"),
    ):
        found[f"permission {state.__name__}"] = partial(update_is_refused, state, message)
    for state, message in (*REFUSED, *git_settings.REFUSING):
        found[f"refused {state.__name__}"] = partial(update_is_refused, state, message)
    for name, (text, reason) in HOSTILE.items():
        content = text if isinstance(text, bytes) else text.encode()
        found[f"answers {name}"] = partial(answers_are_refused, content, reason)
    for change in (*hostile_templates.TEMPLATES, *hostile_templates.EXPENSIVE):
        found[f"template {change.__name__}"] = partial(template_is_harmless, change)
    for change, state, expected in CHANGES:
        name = f"change {change.__name__} {state.__name__}"
        found[name] = partial(template_change_arrives, change, state, expected)
    return found


def attempt(arena: Arena, name: str) -> tuple[int, list[tuple[str, str]]]:
    """Make an attempt in the environment of `harness`, and return the number of runs and what was found."""
    with tempfile.TemporaryDirectory(prefix="attack-", ignore_cleanup_errors=True) as folder:
        made = Attempt(
            Path(folder) / "case", name, arena, unprivileged=name.startswith("permission")
        )
        try:
            cases()[name](made)
        except (AssertionError, OSError, ValueError, LookupError) as error:
            made.report("surprises", f"the attempt itself failed: {type(error).__name__}: {error}")
        shutil.rmtree(git_settings.on_other_file_system(made.place), ignore_errors=True)
    return made.runs, made.found


def main() -> None:
    """Make the attempts in two processes, and print the counts."""
    start, runs, found = time.monotonic(), 0, list[tuple[str, str]]()
    names = [
        name for name in cases() if not sys.argv[1:] or any(part in name for part in sys.argv[1:])
    ]
    folder = Path(tempfile.mkdtemp(prefix="arena-"))
    os.environ |= harness()
    try:
        arena = Arena.make(folder)
        with ProcessPoolExecutor(2) as pool:
            for done in as_completed([pool.submit(attempt, arena, name) for name in names]):
                runs, found = runs + done.result()[0], found + done.result()[1]
                for kind, what in done.result()[1]:
                    print(f"{kind}: {what}", flush=True)
    finally:
        shutil.rmtree(folder)
    print(f"\n{runs} runs in {len(names)} attempts, {time.monotonic() - start:.0f} s")
    for kind in KINDS:
        print(f"{sum(it == kind for it, _ in found):5}  {kind}")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
