"""A model is added by its network, its recipe and one entry of copier.yml.

Nothing else needs its name.
"""

import json
import shutil
import sys
from pathlib import Path

import pytest
from matrix import ROOT
from program import Fastproj, Project, run_in
from updating import commit, git
from warm import FORKED, run_python

SUPPORT = ROOT / "tests/support"


@pytest.fixture
def template(tmp_path: Path) -> Path:
    """A copy of the template, as a team would fork it."""
    folder = tmp_path / "fork"
    shutil.copytree(
        ROOT / "template", folder / "template", ignore=shutil.ignore_patterns("__pycache__")
    )
    shutil.copy(ROOT / "copier.yml", folder)
    git(folder, "init", "-q")
    return folder


@pytest.mark.slow
def test_custom_model_renders_trains_and_passes_its_tests(
    template: Path, fastproj: Fastproj, tmp_path: Path
) -> None:
    shutil.copytree(SUPPORT / "softmax", template / "template/models/softmax")
    questions = (template / "copier.yml").read_text()
    words = "network: a linear classifier, purpose: image classification"
    entry = f"    softmax: {{data: images, {words}}}\n"
    (template / "copier.yml").write_text(questions.replace("    gpt: {", f"{entry}    gpt: {{", 1))
    commit(template)
    arguments = ["--template", str(template), "--output", str(tmp_path), "--yes"]
    fastproj("new", "proj", "--model", "softmax", *arguments)
    folder = tmp_path / "proj"
    assert (folder / "src/proj/model.py").read_bytes() == (
        SUPPORT / "softmax/model.py"
    ).read_bytes()
    run_in(folder, "launch/local.sh", "--run.name=first")
    last = json.loads((folder / "runs/first/metrics.jsonl").read_text().splitlines()[-1])
    assert last["accuracy"] >= 0.9
    tests = [f"src/proj/tests/test_{name}.py" for name in ("model", "softmax")]
    run_python(
        folder,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        *FORKED,
        *tests,
    )


def test_check_passes_for_an_untyped_network_and_dataset(project: Project, tmp_path: Path) -> None:
    folder = shutil.copytree(project("pytorch", "resnet"), tmp_path / "proj")
    package = folder / "src/proj"
    for name in ("test_data_files", "test_resnet"):  # as README says
        (package / f"tests/{name}.py").unlink()
    for file in (SUPPORT / "pasted").iterdir():
        shutil.copy(file, package)
    # torch is not read, which takes a minute; its types in unions are then none
    unread = ["--follow-imports=skip", "--disable-error-code=valid-type"]
    unread += ["--disable-error-code=operator", "--cache-dir=/dev/null"]
    for check in (["ruff", "check"], ["mypy", *unread]):
        run_in(folder, sys.executable, "-m", *check)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda folder: (folder / "copier.yml").write_text("a: [\n"),
            "cannot read the template's copier.yml",
        ),
        (lambda folder: (folder / "copier.yml").write_text("- a\n"), "no keys and values"),
        (lambda folder: (folder / "template/models/resnet/model.py").unlink(), "model.py"),
        (
            lambda folder: (folder / "template/models/resnet/default.yaml").write_text(
                "{{ nonsense }}"
            ),
            "nonsense",
        ),
        (
            lambda folder: (folder / "template/models/resnet/default.yaml").write_text("{% if %}"),
            "broken",
        ),
        (lambda folder: (folder / "copier.yml").unlink(), "proj"),
        (
            lambda folder: (folder / "copier.yml").write_text(
                "model:\n  type: str\n  choices: [a, b]\n"
            ),
            "resnet",
        ),
        (lambda folder: (folder / "copier.yml").write_text("license: MIT\n"), "no such question"),
        (lambda folder: (folder / "copier.yml").write_text("a: !nonsense x\n"), "copier.yml"),
    ],
)
def test_broken_template_is_a_one_line_error(
    template: Path, fastproj: Fastproj, tmp_path: Path, change: object, message: str
) -> None:
    assert callable(change)
    change(template)
    commit(template)
    (tmp_path / "out").mkdir()
    options = [
        "--model",
        "resnet",
        "--template",
        str(template),
        "-o",
        str(tmp_path / "out"),
    ]
    result = fastproj("new", "proj", *options, "--yes", status=None)
    assert result.returncode == (2 if "--model" in result.stderr else 1)  # its choices are others
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
    assert list((tmp_path / "out").iterdir()) == []
