"""Our faster run of copier renders the same files, modes and answers as copier itself."""

import os
import stat
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import copier  # noqa: F401 - one test hides a module that it needs
import pytest
import yaml
from fastproj.shared.worker import run_copy
from matrix import COMPONENTS, EVERY, UPDATE_SOURCE
from program import Fastproj

COMBINATIONS = [
    {"model": "gpt", "gpus": 8, "nodes": 4, "tensor_cores": "fp8"},
    {"model": "unet", "gpus": 1, "nodes": 1, "tensor_cores": "fp16"},
    {"model": "mlp", "gpus": 0, "nodes": 1},
]
# Yield tags set a state of the Jinja environment, which compiling resets; `run` is executable.
CUSTOM = {
    "copier.yml": "_subdirectory: '{{ part }}'\nproject_name: {}\npart:\n  type: str\n  default: project\n",
    "project/.copier-answers.yml.jinja": "{{ _copier_answers | to_nice_yaml }}",
    "project/{% yield it from ['a', 'b'] %}{{ it }}{% endyield %}/{{ project_name }}/{{ it }}.txt.jinja": "{{ it }}\n",
    "project/{{ project_name }}/{{ project_name }}.txt": "{{ not rendered }}\n",
    "project/{{ project_name }}/run": "#!/bin/sh\n",
}


def snapshot(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Return the mode and content of each file and folder."""
    paths = [path for path in folder.rglob("*") if ".git" not in path.relative_to(folder).parts]
    return {
        str(path.relative_to(folder)): (path.stat().st_mode, path.read_bytes() if path.is_file() else b"")
        for path in paths
    }


def plain_copy(
    environment: dict[str, str], source: str, target: Path, revision: str, answers: Mapping[str, object]
) -> None:
    """Render with copier's own command."""
    data = target.with_suffix(".yml")
    data.write_text(yaml.safe_dump({key: value for key, value in answers.items() if not key.startswith("_")}))
    command = [sys.executable, "-m", "copier", "copy", "--quiet", "--defaults", "--vcs-ref", revision]
    command += ["--data-file", str(data)]
    subprocess.run([*command, source, str(target)], env=environment, check=True, cwd=target.parent)


@pytest.mark.parametrize("combination", COMBINATIONS if EVERY else COMBINATIONS[:1], ids=lambda it: str(it["model"]))
def test_new_equals_copier_copy(
    combination: dict[str, object], fastproj: Fastproj, environment: dict[str, str], tmp_path: Path
) -> None:
    options = [f"--{key.replace('_', '-')}={value}" for key, value in combination.items()]
    options += [f"--components={','.join(COMPONENTS)}", f"--update-source={UPDATE_SOURCE}"]
    done = fastproj("new", "proj", "--yes", *options, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    recorded = yaml.safe_load((tmp_path / "proj/.copier-answers.yml").read_text())
    plain = tmp_path / "plain"
    plain_copy(environment, recorded["_src_path"], plain, recorded["_commit"], recorded)
    assert len(snapshot(plain)) > 40
    assert snapshot(plain) == snapshot(tmp_path / "proj")


@pytest.mark.parametrize("known_copier", [True, False])
def test_custom_template_equals_copier_copy(
    known_copier: bool, environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, content in CUSTOM.items():
        file = tmp_path / "template" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
    script = tmp_path / "template/project/{{ project_name }}/run"
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    answers = {"project_name": "proj"}
    plain, ours = tmp_path / "plain", tmp_path / "ours"
    plain_copy(environment, str(tmp_path / "template"), plain, "HEAD", answers)
    if not known_copier:
        monkeypatch.setitem(sys.modules, "copier._settings", None)  # importing it fails
    run_copy(str(tmp_path / "template"), ours, None, data=answers, defaults=True, quiet=True)
    assert os.access(ours / "proj/run", os.X_OK)
    assert snapshot(plain) == snapshot(ours)
    assert (ours / "b/proj/b.txt").read_text() == "b\n"


def test_libraries_of_prompts_are_imported_only_when_called(environment: dict[str, str]) -> None:
    code = """
import sys
from fastproj.shared.imports import import_copier
import_copier(ask=False)
import copier._main as main
assert "questionary" not in sys.modules and "prompt_toolkit" not in sys.modules
question = main.confirm("Overwrite?")
import questionary
assert isinstance(question, questionary.Question)
"""
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
