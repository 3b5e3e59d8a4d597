"""Releases in which a folder becomes a file, or a file a folder, with what the project must have after the update."""

import shutil
from pathlib import Path

import edits
from edits import State
from hostile_templates import Change


def folder_becomes_file(template: Path) -> None:
    shutil.rmtree(template / "project/launch")
    (template / "project/launch").write_text("a file now\n")


def file_becomes_folder(template: Path) -> None:
    engine = template / "project/src/{{ package }}/engine.py"
    engine.unlink()
    engine.mkdir()
    (engine / "part.py").write_text("in a folder now\n")


CHANGES: list[tuple[Change, State, dict[str, str]]] = [
    (folder_becomes_file, edits.unedited, {"launch": "a file now\n"}),
    (folder_becomes_file, edits.edited_another_function, {"launch": "a file now\n"}),
    (file_becomes_folder, edits.unedited, {"src/proj/engine.py/part.py": "in a folder now\n"}),
    (file_becomes_folder, edits.deleted, {"src/proj/engine.py/part.py": "in a folder now\n"}),
    (file_becomes_folder, edits.renamed, {"src/proj/engine.py/part.py": "in a folder now\n"}),
]
