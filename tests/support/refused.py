"""States of a project in which an update is refused, and a part of each message."""

import shutil
import subprocess
from pathlib import Path

from edits import PACKAGE, State, edited_another_function
from updating import commit, edit, git


def ignored_file_at_new_path(project: Path) -> None:
    (project / "notes.local").write_text("mine, and ignored\n")


def untracked_file_at_new_path(project: Path) -> None:
    (project / "docs").mkdir()
    (project / "docs/new.md").write_text("mine, and untracked\n")


def untracked_file_instead_of_folder(project: Path) -> None:
    (project / "docs").write_text("mine, and a file\n")


def link_at_new_path(project: Path) -> None:
    (project / "cache").mkdir()
    (project / "docs").symlink_to("cache")


def dirty(project: Path) -> None:
    edited_another_function(project)


def staged(project: Path) -> None:
    edited_another_function(project)
    git(project, "add", "-A")


def uncommitted_removal(project: Path) -> None:
    (project / PACKAGE / "engine.py").unlink()


def intent_to_add(project: Path) -> None:
    (project / "mine.txt").write_text("mine\n")
    git(project, "add", "-N", "mine.txt")


def conflicting_branch(project: Path) -> None:
    git(project, "checkout", "-qb", "other")
    edit(project / "README.md", "About", "Theirs")
    commit(project)
    git(project, "checkout", "-q", "main")
    edit(project / "README.md", "About", "Ours")
    commit(project)


def unfinished(command: str) -> State:
    def state(project: Path) -> None:
        conflicting_branch(project)
        who = ["-c", "user.name=u", "-c", "user.email=u@example.org"]
        subprocess.run(
            ["git", *who, *command.split()], cwd=project, capture_output=True, check=False
        )

    state.__name__ = command.split()[0]
    return state


def leftover_sequencer(project: Path) -> None:
    """Git would go on with the second commit of a cherry-pick."""
    for name in ("first", "second"):
        (project / "README.md").write_text(f"{name}\n")
        commit(project)
    last = git(project, "rev-parse", "HEAD")
    git(project, "reset", "-q", "--hard", "HEAD~2")
    edit(project / "README.md", "About", "Mine")
    commit(project)
    command = ["git", "cherry-pick", f"{last}~1", last]
    subprocess.run(command, cwd=project, capture_output=True, check=False)
    commit(project)
    assert (project / ".git/sequencer").exists()
    assert not (project / ".git/CHERRY_PICK_HEAD").exists()


def assume_unchanged(project: Path) -> None:
    git(project, "update-index", "--assume-unchanged", "src/proj/engine.py")
    edited_another_function(project)


def sparse(project: Path) -> None:
    git(project, "status")  # what looks changed would stay
    git(project, "sparse-checkout", "set", "configs")


def locked_index(project: Path) -> None:
    (project / ".git/index.lock").touch()


def unborn(project: Path) -> None:
    shutil.rmtree(project / ".git")
    git(project, "init", "-q")


def no_repository(project: Path) -> None:
    shutil.rmtree(project / ".git")


def no_answers(project: Path) -> None:
    (project / ".copier-answers.yml").unlink()
    commit(project)


def answers_with(text: str, name: str) -> State:
    def state(project: Path) -> None:
        (project / ".copier-answers.yml").write_text(
            text.replace("BUNDLE", str(project.parent / "team.bundle"))
        )
        commit(project)

    state.__name__ = name
    return state


def ignored_answers(project: Path) -> None:
    git(project, "rm", "-q", "--cached", ".copier-answers.yml")
    with (project / ".gitignore").open("a") as file:
        file.write(".copier-answers.yml\n")
    commit(project)


def submodule_at_new_path(project: Path) -> None:
    other = project.parent / "other"
    other.mkdir()
    git(other, "init", "-q")
    (other / "mine.py").write_text("mine = 1\n")
    commit(other)
    git(
        project,
        "-c",
        "protocol.file.allow=always",
        "submodule",
        "--quiet",
        "add",
        str(other),
        "src/proj/extras",
    )
    commit(project)


REFUSED: list[tuple[State, str]] = [
    (ignored_file_at_new_path, "notes.local"),
    (untracked_file_at_new_path, "docs/new.md"),
    (untracked_file_instead_of_folder, "docs"),
    (link_at_new_path, "docs"),
    (dirty, "src/proj/engine.py changed since the last commit"),
    (staged, "src/proj/engine.py changed since the last commit"),
    (uncommitted_removal, "src/proj/engine.py changed since the last commit"),
    (intent_to_add, "mine.txt changed"),
    (unfinished("merge other"), "git merge --abort"),
    (unfinished("rebase other"), "git rebase --abort"),
    (unfinished("cherry-pick other"), "git cherry-pick --abort"),
    (leftover_sequencer, "git cherry-pick --quit"),
    (assume_unchanged, "--no-assume-unchanged"),
    (sparse, "sparse-checkout disable"),
    (locked_index, "index.lock"),
    (unborn, "no commit yet"),
    (no_repository, "not in a git repository"),
    (no_answers, "git log -p -- .copier-answers.yml"),
    (answers_with("", "empty"), "no keys and values"),
    (answers_with("{", "broken"), "cannot read"),
    (answers_with("_src_path: BUNDLE\ngpus: 0\n", "without_version"), "_commit"),
    (answers_with("_commit: v0.1.0\ngpus: 0\n", "without_place"), "_src_path"),
    (answers_with("_src_path: 5\n_commit: [a]\n", "of_other_types"), "_src_path"),
    (
        answers_with("_src_path: /no/where\n_commit: v0.1.0\n", "elsewhere"),
        "is not on this machine",
    ),
    (
        answers_with("_src_path: https://127.0.0.1:9/x.git\n_commit: v1\n", "offline"),
        "could not read the template",
    ),
    (
        answers_with("_src_path: BUNDLE\n_commit: v9.9.9\nproject_name: proj\n", "unknown_version"),
        "no version v9.9.9",
    ),
    (
        answers_with("_src_path: BUNDLE\n_commit: --upload-pack=x\n", "hostile_version"),
        "no version --upload-pack=x",
    ),
    (
        answers_with(
            "_src_path: BUNDLE\n_commit: v0.1.0\nproject_name: proj\nmodel: x\n", "bad_answer"
        ),
        "does not fit",
    ),
    (ignored_answers, "is not committed"),
    (submodule_at_new_path, "is a submodule"),
]
