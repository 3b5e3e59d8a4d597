"""A place where fastproj runs on one project, and everything that a run may not do is noticed and counted."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from program import run_fastproj
from project_state import Entries, Observed, harness
from updating import build, lost_edits, read_files

KINDS = (
    "lost edits",
    "wrong merges",
    "code executed",
    "tracebacks",
    "hangs",
    "leftovers",
    "surprises",
)
TIMEOUT_S = float(os.environ.get("ATTACK_TIMEOUT", "150"))
"""A rendering may take 30 s of CPU time, which is more on a busy machine."""
MEMORY = 6 * 2**30
"""Of a process under test, so that a template that is not limited by the program does not exhaust the machine."""
IDENTITY = "[user]\nname = u\nemail = u@example.org\n"
ANSWERS = ".copier-answers.yml"


@dataclass(frozen=True)
class Arena:
    """What all attempts share: a project of the first and of the newest release, and the template's bundle."""

    old: Path
    new: Path
    bundle: Path

    @classmethod
    def make(cls, folder: Path) -> "Arena":
        """Render the projects."""
        for version in (1, 3):
            output = folder / f"release-{version}"
            (output / "home").mkdir(parents=True)
            bundle = build(output, version)
            command = [
                sys.executable,
                "-m",
                "fastproj",
                "new",
                "proj",
                "--yes",
                "--template",
                str(bundle),
            ]
            variables = harness() | {"HOME": str(output / "home")}
            subprocess.run(
                [*command, "--output", str(output)], env=variables, check=True, capture_output=True
            )
        newest = folder / "release-3/team.bundle"
        shutil.copy(newest, folder / "release-1/team.bundle")
        return cls(folder / "release-1/proj", folder / "release-3/proj", newest)


@dataclass
class Attempt(Observed):
    """One project under attack: runs of the program on it, and what was found."""

    name: str
    arena: Arena
    unprivileged: bool = False
    """Whether permissions of files apply, also to root."""
    converted: bool = False
    """Whether the files in the work tree differ from those in the index."""
    runs: int = 0
    found: list[tuple[str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Copy the project."""
        for name in ("home", "tmp"):
            (self.place / name).mkdir(parents=True)
        shutil.copytree(self.arena.old, self.project, symlinks=True)
        shutil.copy(self.arena.bundle, self.place / "team.bundle")
        (self.place / "home/.gitconfig").write_text(IDENTITY)

    def report(self, kind: str, what: str) -> None:
        """Note something that must not happen."""
        self.found.append((kind, f"{self.name}: {' '.join(what.split())[:200]}"))

    def fastproj(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run the program, and notice what is wrong with its end."""
        before = self.outside()
        done = self._run(arguments)
        self.runs += 1
        what = (
            f"{' '.join(arguments)} ({done.returncode}): {done.stderr[-150:] or done.stdout[-50:]}"
        )
        hung = done.returncode == -signal.SIGKILL
        if (failed := _failure(done)) and not hung:
            self.report("tracebacks", f"{failed}: {what}")
        self.notice_code(what)
        if (left := os.listdir(self.place / "tmp")) and not hung:
            self.report("leftovers", f"TMPDIR after {what}: {left}")
            shutil.rmtree(self.place / "tmp")
            (self.place / "tmp").mkdir()
        if (after := self.outside()) != before:
            changed = [
                path for path in before.keys() | after.keys() if before.get(path) != after.get(path)
            ]
            self.report(
                "lost edits", f"{what}: files outside of the project: {sorted(changed)[:3]}"
            )
        return done

    def _run(self, arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
        home = self.place / "home"
        variables = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith(("GIT_", "FASTPROJ_", "XDG_"))
        }
        variables |= {
            "HOME": str(home),
            "XDG_CONFIG_HOME": str(home / ".config"),
            "TMPDIR": str(self.place / "tmp"),
        }
        variables |= {"OMP_NUM_THREADS": "1"}
        if (home / "environment").exists():
            variables |= dict(
                line.split("=", 1) for line in (home / "environment").read_text().splitlines()
            )
        place = self.project if self.project.is_dir() else self.place
        as_user = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"]
        prefix = as_user if self.unprivileged and os.geteuid() == 0 else []
        try:
            return run_fastproj(arguments, place, variables, TIMEOUT_S, MEMORY, prefix)
        except subprocess.TimeoutExpired:
            self.report("hangs", " ".join(arguments))
            return subprocess.CompletedProcess(arguments, -signal.SIGKILL, "", "")

    def notice_code(self, what: str) -> None:
        """Notice that a payload was executed."""
        hacked = self.place / "hacked"
        if hacked.exists():
            self.report("code executed", f"{what}: {hacked.read_text()[:100]}")
            hacked.unlink()

    def unchanged(self, before: dict[str, object], what: str, objects: bool = True) -> None:
        """Notice a difference from a state."""
        after = self.state(objects)
        for key in ("files", "index", "git"):
            if before[key] != after[key]:
                old, new = before[key], after[key]
                differing = str(new)[:100]
                if isinstance(old, dict) and isinstance(new, dict):
                    differing = str(
                        sorted(it for it in old.keys() | new.keys() if old.get(it) != new.get(it))[
                            :3
                        ]
                    )
                self.report("lost edits", f"{what} changed {key}: {differing}")

    def no_leftovers(self, what: str) -> None:
        """Notice what a finished or refused update left."""
        lock = self.git_dir() / "index.lock"
        left = [str(lock)] if os.path.lexists(lock) else []
        left += self.git("for-each-ref", "refs/worktree").split()
        if left:
            self.report("leftovers", f"{what}: {left}")

    def merged(self, before: dict[str, tuple[str, bytes]], mine: Entries, what: str) -> None:
        """Notice lost edits, and files that only one side changed and that are not as that side has them."""
        if self.converted:
            of_template = mine.keys() & read_files(self.arena.old).keys()
            before = before | {path: (before[path][0], mine[path][1]) for path in of_template}
        for lost in lost_edits(self.project, before, read_files(self.arena.old)):
            self.report("lost edits", f"{what}: {lost}")
        old, new = (_rendered(folder) for folder in (self.arena.old, self.arena.new))
        after, files = self.entries(), read_files(self.project)
        unmerged = {
            line.partition("\t")[2] for line in self.git("ls-files", "-u", "-z").split("\0")
        }
        unstaged = self.git(
            "diff", "--no-ext-diff", "--no-textconv", "--ignore-submodules", "--name-only", "-z"
        )
        for path in old.keys() | new.keys() | mine.keys() | after.keys():
            if (
                path in unmerged
                or f"{path}~HEAD" in unmerged
                or path == ANSWERS
                or _is_moved(path, old, mine)
            ):
                continue
            by_user, by_template = mine.get(path) != old.get(path), new.get(path) != old.get(path)
            expected = mine.get(path) if by_user else new.get(path)
            if not (by_user and by_template) and after.get(path) != expected:
                self.report("wrong merges", f"{what}: {path} in the index")
            on_disk = files.get(path, ("", b"missing"))[1]
            if path in after and not self.converted and on_disk != after[path][1]:
                self.report("wrong merges", f"{what}: {path} in the work tree")
        for path in set(unstaged.split("\0")) - unmerged - {""}:
            self.report("wrong merges", f"{what}: {path} is not staged")
        if b"_commit: v0.3.0" not in files[ANSWERS][1].replace(b"'", b""):
            self.report("wrong merges", f"{what}: the answers record another version")


def _failure(done: subprocess.CompletedProcess[str]) -> str:
    """Return what is wrong with the end of a run; empty if nothing is."""
    if "Traceback" in done.stderr or done.stderr.count("\n") > 1:
        return "more than one line"
    if done.returncode not in (0, 1, 2, 3, 4):
        return "undocumented exit status"
    if done.stderr and (
        done.stdout or not done.returncode or not done.stderr.startswith("fastproj: ")
    ):
        return "not the one line of an error"
    return "silent failure" if done.returncode and not done.stdout and not done.stderr else ""


_cache: dict[Path, Entries] = {}


def _rendered(folder: Path) -> Entries:
    if folder not in _cache:
        files = read_files(folder)
        _cache[folder] = {
            path: ("100755" if kind == "x" else "100644", it) for path, (kind, it) in files.items()
        }
    return _cache[folder]


def _is_moved(path: str, old: Entries, mine: Entries) -> bool:
    """Whether the user or the template moved a file to this path, so that it has the changes of both."""
    loop = "src/proj/loop.py"
    has_moved = "src/net/engine.py" in mine
    return (
        path == "src/proj/motor.py"
        or path.startswith(("src/net/", "shared/configs/"))
        or (has_moved and path.startswith("src/proj/"))
        or (path == "src/proj/train.py" and mine.get(loop) != old.get(loop))
    )
