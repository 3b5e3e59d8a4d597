"""A place where fastproj runs on one project, and everything that a run may not do is noticed and counted."""

import os
import resource
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from program import PROGRAMS
from updating import build, lost_edits, read_files

KINDS = ("lost edits", "wrong merges", "code executed", "tracebacks", "hangs", "leftovers", "surprises")
TIMEOUT_S = float(os.environ.get("ATTACK_TIMEOUT", "60"))
MEMORY = 6 * 2**30
"""Of a process under test, so that a template that is not limited by the program does not exhaust the machine."""
NOBODY = 65534
ANSWERS = ".copier-answers.yml"
_OVERRIDES = {
    "core.fsmonitor": "false",
    "core.hooksPath": os.devnull,
    "commit.gpgSign": "false",
    "log.showSignature": "false",
    "safe.directory": "*",
    "safe.bareRepository": "all",
    "protocol.allow": "always",
    "gc.auto": "0",
    "user.name": "u",
    "user.email": "u@example.org",
    "init.defaultBranch": "main",
    "advice.detachedHead": "false",
}


def harness() -> dict[str, str]:
    """Return the environment of our own git calls, which no setting of a project under attack may affect."""
    found = {key: value for key, value in os.environ.items() if not key.startswith(("GIT_", "FASTPROJ_"))}
    found |= {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_COUNT": str(len(_OVERRIDES))}
    for number, (key, value) in enumerate(_OVERRIDES.items()):
        found |= {f"GIT_CONFIG_KEY_{number}": key, f"GIT_CONFIG_VALUE_{number}": value}
    date = "2030-01-01T00:00:00+0000"
    return found | {"GIT_AUTHOR_DATE": date, "GIT_COMMITTER_DATE": date, "LC_ALL": "C.UTF-8", "OMP_NUM_THREADS": "1"}


Entries = dict[str, tuple[str, bytes]]
"""Mode and content of each path."""


@dataclass(frozen=True)
class Arena:
    """What all attempts share: a project of the first and of the newest release, and the template's bundle."""

    old: Path
    new: Path
    bundle: Path

    @classmethod
    def make(cls, folder: Path) -> "Arena":
        """Render the projects into a folder that other users can enter."""
        folder.chmod(0o755)
        for version in (1, 3):
            output = folder / f"release-{version}"
            (output / "home").mkdir(parents=True)
            bundle = build(output, version)
            command = [sys.executable, "-m", "fastproj", "new", "proj", "--yes", "--template", str(bundle)]
            variables = harness() | {"HOME": str(output / "home")}
            subprocess.run([*command, "--output", str(output)], env=variables, check=True, capture_output=True)
        newest = folder / "release-3/team.bundle"
        shutil.copy(newest, folder / "release-1/team.bundle")
        return cls(folder / "release-1/proj", folder / "release-3/proj", newest)


@dataclass
class Attempt:
    """One project under attack: runs of the program on it, and what was found."""

    name: str
    arena: Arena
    place: Path
    as_nobody: bool = False
    converted: bool = False
    """Whether the files in the work tree differ from those in the index."""
    killed: bool = False
    runs: int = 0
    found: list[tuple[str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Copy the project."""
        for name in ("home", "tmp"):
            (self.place / name).mkdir(parents=True)
        shutil.copytree(self.arena.old, self.project, symlinks=True)
        shutil.copy(self.arena.bundle, self.place / "team.bundle")
        (self.place / "home/.gitconfig").write_text("[user]\nname = u\nemail = u@example.org\n")

    @property
    def project(self) -> Path:
        """The project's folder."""
        return self.place / "proj"

    def report(self, kind: str, what: str) -> None:
        """Note something that must not happen."""
        self.found.append((kind, f"{self.name}: {' '.join(what.split())[:200]}"))

    def git(self, *arguments: str) -> str:
        """Run our own git, whatever its exit status."""
        if not self.project.is_dir():
            return ""
        done = subprocess.run(["git", *arguments], cwd=self.project, env=harness(), capture_output=True, check=False)
        return done.stdout.decode(errors="surrogateescape")

    def fastproj(self, *arguments: str, kill: tuple[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        """Run the program, kill it after a step if one is given, and notice what is wrong with its end."""
        before = self._outside()
        stop = [str(PROGRAMS / "stop_update.py"), *kill, "SIGKILL"] if kill else ["-m", "fastproj"]
        done = self._run([sys.executable, *stop, *arguments])
        self.runs += 1
        what = f"{' '.join(arguments)} ({done.returncode}): {done.stderr[-150:] or done.stdout[-50:]}"
        killed = kill is not None and done.returncode == -signal.SIGKILL
        if "Traceback" in done.stderr or done.stderr.count("\n") > 1:
            self.report("tracebacks", what)
        elif not killed and done.returncode not in (0, 1, 2):
            self.report("tracebacks", what)
        elif bool(done.stderr) != done.stderr.startswith("fastproj: ") or (done.stderr and done.stdout):
            self.report("tracebacks", what)
        elif done.returncode and not killed and not done.stderr and not done.stdout:
            self.report("tracebacks", what)
        self.notice_code(what)
        # What a kill leaves in TMPDIR, the next update that is not refused removes.
        ended = not done.stderr and arguments[0] == "update" and "--dry-run" not in arguments
        self.killed = killed or (self.killed and not ended)
        if not self.killed and (left := os.listdir(self.place / "tmp")):
            self.report("leftovers", f"TMPDIR after {what}: {left}")
            shutil.rmtree(self.place / "tmp")
            (self.place / "tmp").mkdir()
        if (after := self._outside()) != before:
            changed = [path for path in before.keys() | after.keys() if before.get(path) != after.get(path)]
            self.report("lost edits", f"{what}: files outside of the project: {sorted(changed)[:3]}")
        return done

    def _run(self, command: list[str]) -> subprocess.CompletedProcess[str]:
        home = self.place / "home"
        variables = {key: value for key, value in os.environ.items() if not key.startswith(("GIT_", "FASTPROJ_"))}
        variables |= {"HOME": str(home), "XDG_CONFIG_HOME": str(home / ".config"), "TMPDIR": str(self.place / "tmp")}
        variables |= {"PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
        if (home / "environment").exists():
            variables |= dict(line.split("=", 1) for line in (home / "environment").read_text().splitlines())
        other = {"user": NOBODY, "group": NOBODY, "extra_groups": []} if self.as_nobody and os.geteuid() == 0 else {}
        process = subprocess.Popen(
            command,
            cwd=self.project if self.project.is_dir() else self.place,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY)),
            **other,  # type: ignore[call-overload]
        )
        try:
            output, message = process.communicate(timeout=TIMEOUT_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, message = process.communicate()
            self.report("hangs", " ".join(command[2:]))
        texts = (it.decode(errors="replace") for it in (output, message))
        return subprocess.CompletedProcess(command, process.returncode, *texts)

    def notice_code(self, what: str) -> None:
        """Notice that a payload was executed."""
        hacked = self.place / "hacked"
        if hacked.exists():
            self.report("code executed", f"{what}: {hacked.read_text()[:100]}")
            hacked.unlink()

    def _outside(self) -> dict[str, bytes]:
        """Return the files that do not belong to the project."""
        skipped = {"proj", "tmp", "hacked", "large/proj", "home/.fastproj", "home/.cache", "out", "main", "deep"}
        found = {}
        for root, folders, names in os.walk(self.place):
            inside = Path(root).relative_to(self.place)
            folders[:] = [it for it in folders if str(inside / it) not in skipped and not it.endswith(".git")]
            for name in names:
                if str(inside / name) not in skipped and os.path.isfile(Path(root, name)):
                    found[str(inside / name)] = Path(root, name).read_bytes()
        return found

    def entries(self) -> Entries:
        """Return what the index holds of the project, without conflicts."""
        lines = [line.partition("\t") for line in self.git("ls-files", "--stage", "-z").split("\0") if line]
        found = {path: about.split() for about, _, path in lines}
        staged = {path: (mode, oid) for path, (mode, oid, stage) in found.items() if stage == "0" and mode != "160000"}
        asked = "".join(f"{oid}\n" for _, oid in staged.values()).encode()
        command = ["git", "cat-file", "--batch"]
        rest = subprocess.run(
            command, cwd=self.project, env=harness(), input=asked, capture_output=True, check=False
        ).stdout
        entries = {}
        for path, (mode, _) in staged.items():
            head, _, rest = rest.partition(b"\n")
            size = int(head.split()[-1]) if not head.endswith(b"missing") else -1
            entries[path], rest = (mode, rest[: max(size, 0)]), rest[size + 1 :]
        return entries

    def state(self, objects: bool = True) -> dict[str, object]:
        """Return everything that a command which only reports may not change; git may refresh its index."""
        git_dir = self.git_dir()
        kept: dict[str, bytes] = {}
        for root, folders, names in os.walk(git_dir):
            folders[:] = [it for it in folders if objects or it != "objects"]
            files = (Path(root, name) for name in names)
            kept |= {str(it): it.read_bytes() for it in files if not it.name.startswith("index") or it.suffix}
        kept = {path: content for path, content in kept.items() if "sharedindex" not in path}
        entries = self.git("ls-files", "-v", "--stage", "-z")
        return {"files": read_files(self.project) if self.project.is_dir() else {}, "index": entries, "git": kept}

    def unchanged(self, before: dict[str, object], what: str, objects: bool = True) -> None:
        """Notice a difference from a state."""
        after = self.state(objects)
        for key in ("files", "index", "git"):
            if before[key] != after[key]:
                old, new = before[key], after[key]
                differing = str(new)[:100]
                if isinstance(old, dict) and isinstance(new, dict):
                    differing = str(sorted(it for it in old.keys() | new.keys() if old.get(it) != new.get(it))[:3])
                self.report("lost edits", f"{what} changed {key}: {differing}")

    def git_dir(self) -> Path:
        """Return git's folder."""
        return Path(self.git("rev-parse", "--absolute-git-dir").strip() or self.place / "none")

    def lock(self) -> Path:
        """Return git's lock on the index."""
        return self.git_dir() / "index.lock"

    def no_leftovers(self, what: str) -> None:
        """Notice what a finished or refused update left."""
        git_dir = self.git_dir()
        places = [git_dir / "fastproj", git_dir / "index.lock", self.project / ".fastproj"]
        left = [str(it) for it in places if os.path.lexists(it)]
        left += self.git("for-each-ref", "refs/worktree", "refs/fastproj").split()
        if left:
            self.report("leftovers", f"{what}: {left}")

    def merged(self, before: dict[str, tuple[str, bytes]], mine: Entries, what: str) -> None:
        """Notice lost edits, and files that only one side changed and that are not as that side has them."""
        before = {path: it for path, it in before.items() if not it[1].startswith((b"\xff\xfe", b"\xfe\xff"))}
        for lost in lost_edits(self.project, before, read_files(self.arena.old)):
            self.report("lost edits", f"{what}: {lost}")
        old, new = (_rendered(folder) for folder in (self.arena.old, self.arena.new))
        after, files = self.entries(), read_files(self.project)
        unmerged = {line.partition("\t")[2] for line in self.git("ls-files", "-u", "-z").split("\0")}
        unstaged = self.git("diff", "--no-ext-diff", "--no-textconv", "--ignore-submodules", "--name-only", "-z")
        for path in old.keys() | new.keys() | mine.keys() | after.keys():
            if path in unmerged or path == ANSWERS or _is_moved(path, old, mine):
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


_cache: dict[Path, Entries] = {}


def _rendered(folder: Path) -> Entries:
    if folder not in _cache:
        files = read_files(folder)
        _cache[folder] = {path: ("100755" if kind == "x" else "100644", it) for path, (kind, it) in files.items()}
    return _cache[folder]


def _is_moved(path: str, old: Entries, mine: Entries) -> bool:
    """Whether the user or the template moved a file to this path, so that it has the changes of both."""
    loop = "src/proj/loop.py"
    return path == "src/proj/motor.py" or (path == "src/proj/train.py" and mine.get(loop) != old.get(loop))
