"""Edits that a user may have made before an update, as functions of the project folder."""

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

from updating import commit, edit, git

State = Callable[[Path], None]
PACKAGE = Path("src/proj")


def unedited(project: Path) -> None:
    pass


def edited_another_function(project: Path) -> None:
    edit(project / PACKAGE / "engine.py", "return 20\n", "return 20 + 1  # mine, far away\n")


def edited_adjacent_line(project: Path) -> None:
    edit(project / PACKAGE / "engine.py", "return 0\n", "return 0 + 1  # mine, just below\n")
    edit(project / "README.md", "Release", "My release")


def edited_same_line(project: Path) -> None:
    edit(project / PACKAGE / "engine.py", '"""Of release', '"""Mine, and of release')


def deleted(project: Path) -> None:
    (project / PACKAGE / "engine.py").unlink()
    (project / "logo.bin").unlink()


def renamed(project: Path) -> None:
    (project / PACKAGE / "engine.py").rename(project / PACKAGE / "motor.py")
    edit(
        project / PACKAGE / "motor.py", "return 20\n", "return 20 + 1  # mine, in a renamed file\n"
    )


def edited_removed_files(project: Path) -> None:
    for name in ("old.py", "loop.py"):
        if (project / PACKAGE / name).exists():
            with (project / PACKAGE / name).open("a") as file:
                file.write(f"MINE = '{name}'\n")


def edited_binary(project: Path) -> None:
    (project / "logo.bin").write_bytes(b"\0mine" * 50)


def added_binary(project: Path) -> None:
    (project / "weights.bin").write_bytes(random.Random(0).randbytes(2000))  # noqa: S311


def added_ignored_files(project: Path) -> None:
    (project / "cache").mkdir()
    (project / "cache/data.bin").write_bytes(b"\0mine")
    (project / "mine.local").write_text("mine\n")


def untracked(project: Path) -> None:
    (project / "scratch.txt").write_text("mine, never added\n")


def edited_repeated_blocks(project: Path) -> None:
    file = project / "configs/default.yaml"
    blocks = file.read_text().split("\n\n")
    blocks[-2] = blocks[-2].replace("workers: 4", "workers: 16  # mine, of the last block")
    blocks.insert(
        1,
        blocks[0].replace("train", "mine").replace("pinned: true", "pinned: false  # of my block"),
    )
    file.write_text("\n\n".join(blocks))


def edited_one_of_equal_blocks(project: Path) -> None:
    """Far from the block's name, while the template adds an equal block above."""
    file = project / "configs/default.yaml"
    blocks = file.read_text().split("\n\n")
    blocks[2] = blocks[2].replace("rate: 0.1", "rate: 0.7  # mine, of the test block")
    file.write_text("\n\n".join(blocks))


def added_file_of_the_same_name(project: Path) -> None:
    (project / "docs").mkdir(exist_ok=True)
    (project / "docs/new.md").write_text("# My own page\n\nAll mine.\n")


def file_instead_of_folder(project: Path) -> None:
    if not (project / PACKAGE / "extras").exists():
        (project / PACKAGE / "extras").write_text(
            "a file of mine where the template will have a folder\n"
        )


def crlf(project: Path) -> None:
    for file in (project / PACKAGE / "engine.py", project / "configs/default.yaml"):
        file.write_bytes(file.read_bytes().replace(b"\n", b"\r\n"))
    edit_bytes(project / PACKAGE / "engine.py", b"return 20\r\n", b"return 21  # mine\r\n")


def edit_bytes(file: Path, old: bytes, new: bytes) -> None:
    assert old in file.read_bytes()
    file.write_bytes(file.read_bytes().replace(old, new, 1))


def renamed_with_crlf(project: Path) -> None:
    content = (project / PACKAGE / "engine.py").read_bytes().replace(b"\n", b"\r\n")
    (project / PACKAGE / "engine.py").unlink()
    (project / PACKAGE / "motor.py").write_bytes(
        content.replace(b"return 20\r\n", b"return 21  # mine\r\n")
    )


def mode_changed(project: Path) -> None:
    (project / PACKAGE / "engine.py").chmod(0o755)
    (project / "README.md").chmod(0o755)


def replaced_by_link(project: Path) -> None:
    (project / "README.md").unlink()
    (project / "mine.md").write_text("mine\n")
    (project / "README.md").symlink_to("mine.md")


def own_model(project: Path) -> None:
    (project / PACKAGE / "model.py").write_text("# a network of my own\nSIZE = 99\n")


def unusual_names(project: Path) -> None:
    for name in ("a b", "ä", 'quo"te', "tab\there", "-rf", "new\nline", os.fsdecode(b"\xff")):
        (project / name).write_text(f"mine, {len(name)}\n")


def detached(project: Path) -> None:
    commit_all = (project / "x.txt").write_text("mine\n")
    assert commit_all
    commit(project)
    git(project, "checkout", "-q", "--detach")


def failing_hooks(project: Path) -> None:
    if git(project, "status", "--porcelain"):
        commit(project)
    hooks = project / ".git/hooks"
    hooks.mkdir(exist_ok=True)
    for name in (
        "pre-commit",
        "post-checkout",
        "post-index-change",
        "reference-transaction",
        "pre-auto-gc",
    ):
        (hooks / name).write_text(
            "#!/bin/sh\necho $0 >> $(git rev-parse --git-dir)/hooked\nexit 1\n"
        )
        (hooks / name).chmod(0o755)


def own_attributes(project: Path) -> None:
    (project / ".gitattributes").write_text("*.yaml text eol=crlf\n*.py text=auto\n")
    edited_another_function(project)
    commit(project)
    (project / "configs/default.yaml").unlink()
    git(project, "checkout", "--", "configs")


def renamed_package(project: Path) -> None:
    (project / PACKAGE).rename(project / "src/net")
    edit(project / "src/net/engine.py", "return 20\n", "return 20 + 1  # mine, in my package\n")


def linked_folder(project: Path) -> None:
    """A folder that moved, with a link at its old place."""
    (project / "shared").mkdir()
    (project / "configs").rename(project / "shared/configs")
    (project / "configs").symlink_to("shared/configs")
    edit(project / "shared/configs/default.yaml", "seed: 1", "seed: 7  # mine, behind a link")


def linked_folder_at_new_path(project: Path) -> None:
    """With a committed file where the template will have one."""
    if not (project / "docs").exists():
        (project / "pages").mkdir()
        (project / "pages/new.md").write_text("# My own page behind a link\n")
        (project / "docs").symlink_to("pages")


def file_instead_of_rendered_folder(project: Path) -> None:
    shutil.rmtree(project / "launch")
    (project / "launch").write_text("a file of mine where the template has a folder\n")


def crlf_of_renamed_file(project: Path) -> None:
    """The template renames it, too."""
    file = project / PACKAGE / "loop.py"
    if file.exists():
        file.write_bytes(file.read_bytes().replace(b"\n", b"\r\n"))
        edit_bytes(file, b"step 3 of", b"step 3, mine, of")


def renamed_on_both_sides(project: Path) -> None:
    file = project / PACKAGE / "loop.py"
    if file.exists():
        file.rename(project / PACKAGE / "cycle.py")
        edit(project / PACKAGE / "cycle.py", "step 3 of", "step 3, mine, of")


def controlling_names(project: Path) -> None:
    for name in ("esc\x1b[2J", "carriage\rreturn", "right\u202eleft"):
        (project / name).write_text(f"mine, {name!a}\n")


def deleted_folder(project: Path) -> None:
    shutil.rmtree(project / "launch")
