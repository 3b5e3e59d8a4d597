"""A small template with three releases in a bundle, and what an update must keep."""

import os
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

import yaml
from fastproj.errors import printable

VERSIONS = ["v0.1.0", "v0.2.0", "v0.3.0"]


File = tuple[str, bytes]
"""Kind and content."""
Files = dict[str, File]


class MakeProject(Protocol):
    """Copies a project of a release."""

    def __call__(self, version: str = ..., /) -> Path: ...


QUESTIONS = """\
_subdirectory: project
_skip_if_exists:
  - "src/{{ package }}/model.py"
project_name: {type: str}
package: {type: str, when: false, default: "{{ project_name | replace('-', '_') }}"}
gpus: {type: int, default: 0}
tensor_cores:
  type: str
  when: "{{ gpus > 0 }}"
  choices: [none, bf16]
  default: "{{ 'bf16' if gpus > 0 else 'none' }}"
  validator: >-
    {% if tensor_cores != 'none' and gpus == 0 %}{{ tensor_cores }} needs a GPU{% endif %}
model: {type: str, choices: [one, two], default: one}
components: {type: str, multiselect: true, choices: [slurm, ray], default: []}
"""


def block(name: str, rate: float) -> str:
    """Return a block of a config; the lines that differ are far from its name."""
    before = "  workers: 4\n  pinned: true\n  order: random\n  cache: false\n"
    after = "  decay: 0\n  steps: 10\n  seed: 1\n  note: the same\n\n"
    return f"{name}:\n{before}  rate: {rate}\n{after}"


def engine(version: int) -> str:
    """Forty functions, of which a release changes the first and the last."""
    functions = [f"def part_{number}():\n    return {number}\n" for number in range(40)]
    functions[0] = f'def part_0():\n    """Of release {version}."""\n    return 0\n'
    functions[-1] = f'def part_39():\n    """Of release {version}."""\n    return 39\n'
    return "\n\n".join(functions)


def release(version: int) -> dict[str, str | bytes]:
    """Return the template's files at a release."""
    questions = QUESTIONS + ("tracker: {type: str, default: none}\n" if version >= 3 else "")
    package = "project/src/{{ package }}"
    blocks = [block(name, 0.1) for name in ("train", "val", "test")]
    if version == 2:
        blocks[1] = block("val", 0.2)
    if version >= 3:
        blocks.insert(1, block("tune", 0.1))
    loop = (
        "".join(f"# step {number} of the loop\n" for number in range(20)) + f"# release {version}\n"
    )
    files: dict[str, str | bytes] = {
        "copier.yml": questions,
        "project/{{ _copier_conf.answers_file }}.jinja": (
            "# Answers\n{{ _copier_answers | to_nice_yaml -}}\n"
        ),
        "project/README.md.jinja": "# {{ project_name }}\n\n"
        + f"Release {version}.\n\n"
        + "About.\n\n{{ gpus }} GPUs.\n",
        "project/.gitignore": "*.local\n/cache/\n",
        "project/configs/default.yaml": "".join(blocks),
        "project/logo.bin": bytes(range(256)) + bytes([version]) * 64,
        f"{package}/__init__.py": "",
        f"{package}/engine.py": engine(version),
        f"{package}/model.py.jinja": "# the network {{ model }}\n"
        + "{% if model == 'two' %}A = 2\n{% endif %}"
        + f"SIZE = {version}\n",
        f"{package}/{'loop' if version < 3 else 'train'}.py": loop,
        "project/launch/run.sh": f"#!/bin/sh\n# release {version}\nexec python\n",
        "project/{% if 'slurm' in components %}job.sbatch{% endif %}.jinja": "#!/bin/sh\n",
        "CHANGELOG.md": "# Changelog\n\n"
        + "".join(
            f"## 0.{number}.0 (2030-01-0{number})\n\n- News of {number}.\n\n"
            for number in range(version, 0, -1)
        ),
    }
    if version < 3:
        files[f"{package}/old.py"] = (
            "".join(f"OLD_{number} = {number}\n" for number in range(20)) + f"# {version}\n"
        )
    if version >= 3:
        files |= {"project/docs/new.md": "# New\n", "project/notes.local": "of the template\n"}
        files |= {f"{package}/extras/more.py": "MORE = 1\n"}
    return files


def git(folder: Path, *arguments: str) -> str:
    result = subprocess.run(
        ["git", *arguments],
        cwd=folder,
        capture_output=True,
        check=False,
        encoding="utf-8",
        errors="surrogateescape",
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


def build(folder: Path, newest: int = 3, name: str = "team.bundle") -> Path:
    """Write a bundle with the releases up to `newest`, one parentless commit per release."""
    work = folder / "template"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    git(work, "init", "-q")
    who = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    for version in range(1, newest + 1):
        git(work, "checkout", "-q", "--orphan", f"release-{version}")
        git(work, "rm", "-rfq", "--ignore-unmatch", ".")
        for path, content in release(version).items():
            file = work / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content if isinstance(content, bytes) else content.encode())
        (work / "project/launch/run.sh").chmod(0o755 if version >= 2 else 0o644)
        git(work, "add", "-Af")
        git(work, *who, "commit", "-qm", str(version))
        git(work, "tag", f"v0.{version}.0")
    git(
        work,
        "bundle",
        "create",
        "-q",
        str(folder / name),
        "--tags",
        "HEAD",
    )
    shutil.rmtree(work)
    return folder / name


def read_files(project: Path) -> Files:
    """Return each file outside git's folder: its kind and content."""
    found = {}
    for root, folders, names in os.walk(project):
        folders[:] = [folder for folder in folders if folder != ".git"]
        for name in [*names, *(folder for folder in folders if Path(root, folder).is_symlink())]:
            file = Path(root, name)
            if name == ".git":
                continue
            if file.is_symlink():
                found[str(file.relative_to(project))] = ("link", os.fsencode(os.readlink(file)))
            else:
                kind = "x" if file.stat().st_mode & 0o100 else "-"
                found[str(file.relative_to(project))] = (kind, file.read_bytes())
    return found


def project_state(project: Path) -> tuple[Files, str, str]:
    """Return what an update may change: files, index and branch."""
    return (
        read_files(project),
        git(project, "ls-files", "--stage"),
        git(project, "log", "-1", "--format=%H %D"),
    )


def lines_of(contents: Iterable[bytes]) -> set[bytes]:
    """Return the lines of some files, without their ends."""
    return {line.rstrip(b"\r") for line in b"\n".join(contents).split(b"\n")}


def contents_of(project: Path) -> list[bytes]:
    """Return the contents of all files, and of the sides of conflicts."""
    found = [content for _, content in read_files(project).values()]
    for line in git(project, "ls-files", "-u").splitlines():
        command = ["git", "cat-file", "blob", line.split()[1]]
        done = subprocess.run(
            command,
            cwd=project,
            capture_output=True,
            check=True,
        )
        found.append(done.stdout)
    return found


def lost_edits(
    project: Path,
    before: Files,
    rendered: Files,
) -> list[str]:
    """Return the user's edits that are neither in a file of the project nor in a conflict."""
    after = read_files(project)
    contents = contents_of(project)
    lines = lines_of(contents)
    of_templates = lines_of(content for _, content in rendered.values())
    missing = [f"{path}: came back" for path in (rendered.keys() - before.keys()) & after.keys()]
    for path, (kind, content) in before.items():
        of_template = rendered.get(path)
        if of_template == (kind, content) or path == ".copier-answers.yml":
            continue
        if b"\0" in content:
            missing += [] if content in contents else [path]
            continue
        known = lines_of([of_template[1]]) if of_template else of_templates
        lost = lines_of([content]) - known - lines
        missing += [f"{path}: {line!r}" for line in lost]
        if of_template and path in after:
            missing += _lost_form(path, (kind, content), of_template, after[path])
    return missing


def _lost_form(
    path: str,
    mine: File,
    of_template: File,
    now: File,
) -> list[str]:
    lost = []
    if mine[1].count(b"\r\n") > 1 and b"\r\n" not in now[1]:
        lost.append(f"{path}: its line ends")
    if mine[0] not in (of_template[0], now[0]):
        lost.append(f"{path}: its mode")
    return lost


def unnamed_paths(project: Path, output: str) -> list[str]:
    """Return the paths that an update changed and that its output does not name."""
    changed = git(
        project, "diff", "--name-only", "--no-renames", "--ignore-submodules", "-z", "HEAD"
    )
    paths = filter(None, changed.split("\0"))
    return [path for path in paths if printable(path) not in output]


def run_undo(
    project: Path, command: str, check: bool = True
) -> "subprocess.CompletedProcess[bytes]":
    """Run the command with which an update says that it can be undone."""
    return subprocess.run(
        ["sh", "-c", command],
        cwd=project,
        check=check,
        capture_output=True,
    )


def commit(project: Path, message: str = "mine") -> None:
    git(project, "add", "-A")
    git(
        project,
        "-c",
        "user.name=u",
        "-c",
        "user.email=u@example.org",
        "commit",
        "-qm",
        message,
        "--no-verify",
    )


def edit(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new, 1))


def read_answers(project: Path) -> dict[str, object]:
    """Return what `.copier-answers.yml` records."""
    found: dict[str, object] = yaml.safe_load((project / ".copier-answers.yml").read_text())
    return found
