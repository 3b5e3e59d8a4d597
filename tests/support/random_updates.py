"""Updates to a random next release, of projects with random edits, and what must hold after each.

Each line that a user or the template writes is unique, so it is found wherever a merge puts it.
"""

import os
import random
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from fastproj.errors import CONFLICTS, printable
from program import Fastproj
from updating import Files, commit, contents_of, git, lines_of, read_files, run_undo, unnamed_paths

FILES = [
    *("README.md", "configs/a.yaml", "configs/b.yaml", "docs/one.md", "docs/two.md"),
    *("launch/run.sh", "launch/node.sh", "logo.bin", "src/proj/__init__.py"),
    *("src/proj/data.py", "src/proj/model.py", "src/proj/train.py"),
    *("src/proj/parts/x.py", "src/proj/parts/y.py"),
]
ANSWERS = "{{ _copier_conf.answers_file }}.jinja"
QUESTIONS = (
    "_subdirectory: project\n_skip_if_exists: [src/proj/model.py]\nproject_name: {type: str}\n"
)


def write_template(folder: Path) -> None:
    """Write the first release, whose files have 30 lines each."""
    for path in FILES:
        file = folder / "project" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        lines = [f"line {number} of {path}\n" for number in range(30)]
        file.write_text("".join(lines) + ("\0" if path.endswith(".bin") else ""))
    (folder / "project" / ANSWERS).write_text("{{ _copier_answers | to_nice_yaml -}}\n")
    (folder / "copier.yml").write_text(QUESTIONS)
    git(folder, "init", "-q")
    commit(folder)
    git(folder, "tag", "v1.0.0")


@dataclass
class Editor:
    """One of the two who edit the files: the user or the template."""

    folder: Path
    name: str
    chance: random.Random
    written: list[str] = field(default_factory=list)
    """Lines that must not be lost."""
    done: list[str] = field(default_factory=list)
    count: int = 0

    def files(self) -> list[Path]:
        """Return the files, without links and those behind links."""
        found = []
        for root, folders, names in os.walk(self.folder):
            folders[:] = sorted(name for name in folders if name != ".git")
            found += [Path(root, name) for name in sorted(names) if "copier" not in name]
        return [file for file in found if file.is_file() and not file.is_symlink()]

    def folders(self) -> list[Path]:
        """Return the folders that have files."""
        around = set().union(*(file.parents for file in self.files()))
        return sorted(folder for folder in around if self.folder in folder.parents)

    def line(self) -> str:
        """Return a line that is nowhere else."""
        self.count += 1
        self.written.append(f"{self.name} wrote {self.count} here")
        return f"{self.written[-1]}\n"

    def act(self) -> None:
        """Make one edit."""
        edits: list[Callable[[], str]] = [
            *(self.change, self.change, self.change, self.add, self.add_to_folder),
            *(self.delete, self.rename, self.rename_folder, self.mode, self.link_folder),
            *(self.file_for_folder, self.crlf, self.link_file),
        ]
        count = 9 if self.name == "template" else len(edits)
        self.done.append(self.chance.choice(edits[:count])())

    def change(self) -> str:
        file = self.chance.choice(self.files())
        lines = file.read_bytes().splitlines(keepends=True)
        place = self.chance.randrange(len(lines))
        end = b"\r\n" if lines[0].endswith(b"\r\n") else b"\n"
        before = lines[place].decode().rstrip()
        if before in self.written:
            self.written.remove(before)
        lines[place] = self.line().encode().rstrip() + end
        file.write_bytes(b"".join(lines))
        return f"changed line {place} of {file.relative_to(self.folder)}"

    def add(self) -> str:
        file = self.folder / self.chance.choice(
            ["new.md", "docs/new.md", "src/proj/new.py", "src/proj/parts/new.py", "pages/new.md"]
        )
        return self._write(file)

    def add_to_folder(self) -> str:
        return self._write(self.chance.choice(self.folders()) / f"{self.name}.txt")

    def _write(self, file: Path) -> str:
        if os.path.lexists(file) or not self._is_free(file.parent):
            return "nothing"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(self.line() + self.line())
        return f"added {file.relative_to(self.folder)}"

    def delete(self) -> str:
        file = self.chance.choice(self.files())
        for line in [line for line in self.written if line in file.read_text()]:
            self.written.remove(line)
        file.unlink()
        return f"deleted {file.relative_to(self.folder)}"

    def rename(self) -> str:
        file = self.chance.choice(self.files())
        target = self.chance.choice(self.folders()) / f"{self.name}_{file.name}"
        if not os.path.lexists(target):
            file.rename(target)
        return f"renamed {file.relative_to(self.folder)} {target.relative_to(self.folder)}"

    def rename_folder(self) -> str:
        folder = self.chance.choice(self.folders())
        target = folder.with_name(f"{folder.name}_of_{self.name}")
        if not os.path.lexists(target):
            folder.rename(target)
        return f"renamed folder {folder.relative_to(self.folder)}"

    def mode(self) -> str:
        file = self.chance.choice(self.files())
        file.chmod(0o644 if os.access(file, os.X_OK) and file.stat().st_mode & 0o100 else 0o755)
        return f"changed mode of {file.relative_to(self.folder)}"

    def link_folder(self) -> str:
        folder = self.chance.choice(self.folders())
        target = self.folder / "shared" / folder.name
        if os.path.lexists(target) or self.folder / "shared" in (folder, *folder.parents):
            return "nothing"
        target.parent.mkdir(exist_ok=True)
        folder.rename(target)
        folder.symlink_to(os.path.relpath(target, folder.parent))
        return f"moved and linked {folder.relative_to(self.folder)}"

    def file_for_folder(self) -> str:
        folder = self.chance.choice(self.folders())
        for file in [file for file in self.files() if folder in file.parents]:
            for line in [line for line in self.written if line in file.read_text()]:
                self.written.remove(line)
        shutil.rmtree(folder)
        folder.write_text(self.line())
        return f"replaced by a file {folder.relative_to(self.folder)}"

    def crlf(self) -> str:
        file = self.chance.choice(self.files())
        file.write_bytes(file.read_bytes().replace(b"\r", b"").replace(b"\n", b"\r\n"))
        return f"converted {file.relative_to(self.folder)}"

    def link_file(self) -> str:
        place = self.chance.choice(self.folders()) / "link"
        if not os.path.lexists(place):
            place.symlink_to(self.chance.choice(["target", "../README.md", "x/y"]))
        return f"linked {place.relative_to(self.folder)}"

    def _is_free(self, folder: Path) -> bool:
        around = [folder, *folder.parents]
        return all(not os.path.lexists(place) or place.is_dir() for place in around)


def attempt(
    seed: int, template: Path, project: Path, fastproj: Fastproj, release: int = 2
) -> list[str]:
    """Update a project to a new release, each edited at random, and return what is wrong."""
    chance = random.Random(seed)  # noqa: S311
    theirs = Editor(template / "project", "template", chance)
    mine = Editor(project, "user", chance)
    for editor in (theirs, mine):
        for _ in range(chance.randint(1, 7)):
            if len(editor.files()) > 3:
                editor.act()
    if git(template, "status", "--porcelain"):
        commit(template)
    git(template, "tag", f"v{release}.0.0")
    if git(project, "status", "--porcelain"):
        commit(project)
    before = read_files(project)
    result = fastproj("update", cwd=project, status=None)
    problems = _problems(project, before, result, mine, theirs)
    steps = [f"template: {step}" for step in theirs.done] + [f"user: {step}" for step in mine.done]
    return [f"{problem} | {'; '.join(steps)}\n{result.stdout}" for problem in problems]


def _problems(
    project: Path,
    before: Files,
    result: subprocess.CompletedProcess[str],
    mine: Editor,
    theirs: Editor,
) -> list[str]:
    unmerged = git(project, "ls-files", "-u")
    if result.returncode != (CONFLICTS if unmerged else 0) or result.stderr:
        return [f"status {result.returncode}: {result.stderr}"]
    lines = lines_of(contents_of(project))
    problems = [f"lost: {line}" for line in mine.written if line.encode() not in lines]
    names_left = [line for line in result.stdout.splitlines() if line[2:8] in KEPT]
    if not names_left and "CONFLICT" not in result.stdout:
        missing = [line for line in theirs.written if line.encode() not in lines]
        problems += [f"did not arrive: {line}" for line in missing]
    after = read_files(project)
    problems += _unsaid(before, after, result.stdout)
    problems += unnamed_paths(project, result.stdout)
    if not unmerged:
        problems += _converted(before, after)
    undos = result.stdout.strip().splitlines()[-3::2]
    return problems + _undone(project, before, undos)


def _unsaid(
    before: Files,
    after: Files,
    output: str,
) -> list[str]:
    """Return what changed and is not in the output."""
    changed = [path for path in before if after.get(path) != before[path]]
    found = [f"changed without a word: {it}" for it in changed if printable(it) not in output]
    new = after.keys() - before.keys()
    return found + [f"new without a word: {it}" for it in new if printable(it) not in output]


def _converted(before: Files, after: Files) -> list[str]:
    """Return the files that lost their line ends, and the links that are none any more."""
    problems = []
    for path in before.keys() & after.keys():
        kind, content = before[path]
        new_kind, new = after[path]
        if b"\r\n" in content and b"\n" in new.replace(b"\r\n", b""):
            problems.append(f"lost line ends: {path}")
        if kind == "link" and new_kind != "link":
            problems.append(f"lost link: {path}")
    return problems


def _undone(
    project: Path,
    before: Files,
    undos: list[str],
) -> list[str]:
    """Try each command that takes the update back, in a copy."""
    problems = []
    for undo in undos:
        saved = project.with_name("saved")
        shutil.copytree(project, saved, symlinks=True)
        git(saved, "status")
        run_undo(saved, undo, check=False)
        if read_files(saved) != before or git(saved, "status", "--porcelain"):
            problems.append(f"undo fails: {undo}")
        shutil.rmtree(saved)
    return problems


KEPT = {"yours ", "delete"}
"""The beginnings of lines of the output about changes of the template that are left out."""
