"""A project under attack, as it is: files, index, and git's folder."""

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from updating import read_files

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
    found = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("GIT_", "FASTPROJ_", "XDG_"))
    }
    found |= {
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_COUNT": str(len(_OVERRIDES)),
    }
    for number, (key, value) in enumerate(_OVERRIDES.items()):
        found |= {f"GIT_CONFIG_KEY_{number}": key, f"GIT_CONFIG_VALUE_{number}": value}
    for who in ("AUTHOR", "COMMITTER"):
        found |= {f"GIT_{who}_NAME": "u", f"GIT_{who}_EMAIL": "u@example.org"}
    date = "2030-01-01T00:00:00+0000"
    return found | {
        "GIT_AUTHOR_DATE": date,
        "GIT_COMMITTER_DATE": date,
        "LC_ALL": "C.UTF-8",
        "OMP_NUM_THREADS": "1",
    }


Entries = dict[str, tuple[str, bytes]]
"""Mode and content of each path."""


@dataclass
class Observed:
    """A folder `place` with the project, its user's home and temporary files."""

    place: Path

    @property
    def project(self) -> Path:
        """The project's folder."""
        return self.place / "proj"

    def git(self, *arguments: str) -> str:
        """Run our own git, whatever its exit status."""
        if not self.project.is_dir():
            return ""
        done = subprocess.run(
            ["git", *arguments], cwd=self.project, env=harness(), capture_output=True, check=False
        )
        return done.stdout.decode(errors="surrogateescape")

    def git_dir(self) -> Path:
        """Return git's folder."""
        return Path(self.git("rev-parse", "--absolute-git-dir").strip() or self.place / "none")

    def outside(self) -> dict[str, bytes]:
        """Return the files that do not belong to the project."""
        homes = {"home/.fastproj", "home/.local", "home/.cache"}
        skipped = {"proj", "tmp", "hacked", "large/proj", "out", "main", "deep", *homes}
        found = {}
        for root, folders, names in os.walk(self.place):
            inside = Path(root).relative_to(self.place)
            folders[:] = [
                it for it in folders if str(inside / it) not in skipped and not it.endswith(".git")
            ]
            for name in names:
                if str(inside / name) not in skipped and os.path.isfile(Path(root, name)):
                    found[str(inside / name)] = Path(root, name).read_bytes()
        return found

    def entries(self) -> Entries:
        """Return what the index holds of the project, without conflicts."""
        lines = [
            line.partition("\t")
            for line in self.git("ls-files", "--stage", "-z").split("\0")
            if line
        ]
        found = {path: about.split() for about, _, path in lines}
        staged = {
            path: (mode, oid)
            for path, (mode, oid, stage) in found.items()
            if stage == "0" and mode != "160000"
        }
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
            kept |= {
                str(it): it.read_bytes()
                for it in files
                if not it.name.startswith("index") or it.suffix
            }
        kept = {path: content for path, content in kept.items() if "sharedindex" not in path}
        entries = self.git("ls-files", "-v", "--stage", "-z")
        return {
            "files": read_files(self.project) if self.project.is_dir() else {},
            "index": entries,
            "git": kept,
        }
