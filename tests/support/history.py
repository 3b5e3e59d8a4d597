"""A small template with a history of releases in a git repository."""

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

QUESTIONS = """\
_subdirectory: template/project
_answers_file: .copier-answers.yml
project_name: {type: str, default: proj}
"""
ANSWERS = "{{ _copier_answers|to_nice_yaml }}"
FIRST = {
    "copier.yml": QUESTIONS,
    "template/project/{{ _copier_conf.answers_file }}.jinja": ANSWERS,
    "template/project/README.md.jinja": "# {{ project_name }}\n",
    "template/project/old.txt": "one\ntwo\nthree\n",
    "template/project/gone.txt": "gone\n",
    "template/models/größe.py": "size = 1\n",
    ".gitignore": "__pycache__/\n*.log\n",
    "notes.txt": "not of the template\n",
}
RELEASES: dict[str, dict[str, str | None]] = {
    "0.1.0": {**FIRST},
    "0.2.0": {
        "template/project/old.txt": None,
        "template/project/new.txt": "one\ntwo\nthree\nfour\n",
    },
    "0.3.0": {
        "template/project/gone.txt": None,
        "copier.yml": f"{QUESTIONS}size: {{type: int, default: 3}}\n",
    },
}


class Repository:
    """A git repository with a `pyproject.toml`, a template and releases."""

    def __init__(self, folder: Path, date: str = "2026-01-01T00:00:00+0000") -> None:
        self.folder = folder
        kept = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith(("GIT_", "FASTPROJ_"))
        }
        self.environment = kept | {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
        for who in ("AUTHOR", "COMMITTER"):
            self.environment |= {
                f"GIT_{who}_NAME": "Ada",
                f"GIT_{who}_EMAIL": "a@example.org",
                f"GIT_{who}_DATE": date,
            }
        folder.mkdir(parents=True, exist_ok=True)

    def git(self, *arguments: str) -> str:
        result = subprocess.run(
            ["git", *arguments],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert result.returncode == 0, result.stderr
        return result.stdout.strip()

    def start(self) -> None:
        self.git("init", "--quiet", "--initial-branch=main")

    def write(self, files: Mapping[str, str | None]) -> None:
        for name, content in files.items():
            file = self.folder / name
            if content is None:
                file.unlink()
            else:
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(content)

    def version(self, version: str) -> None:
        self.write({"pyproject.toml": f'[project]\nname = "fastproj"\nversion = "{version}"\n'})

    def commit(self, message: str, version: str | None = None) -> str:
        if version is not None:
            self.version(version)
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "--message", message)
        return self.git("rev-parse", "HEAD")

    def three_releases(self) -> dict[str, str]:
        """Make the history and return each release's own commit."""
        self.start()
        self.commit("Nothing yet", version="0.1.0.dev0")
        made = {}
        for version, changes in RELEASES.items():
            self.write(changes)
            self.commit("Work")
            made[version] = self.commit(f"Release {version}", version)
            major, minor, patch = version.split(".")
            self.commit("Go on", f"{major}.{minor}.{int(patch) + 1}.dev0")
        return made
