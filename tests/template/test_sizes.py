"""The default rendering is small: files, and modules that training loads."""

import json
from pathlib import Path

import pytest
import sizes
from matrix import ENTRIES, EVERY, FRAMEWORKS, MODELS, PAIRS, ROOT, TEMPLATE
from program import PROGRAMS, Project
from warm import run_python


def own_lines(model: str) -> int:
    files = (
        f"models/{model}/model.py",
        f"data/{ENTRIES[model]['data']}/data.py",
        f"models/{model}/test_model.py",
    )
    return sum(sizes.lines(TEMPLATE / file) for file in files)


LONGEST = max(MODELS, key=own_lines)
"""The model whose own files have the most lines."""


@pytest.mark.parametrize(
    ("framework", "model"), PAIRS if EVERY else [(name, LONGEST) for name in FRAMEWORKS]
)
def test_rendering_has_few_files(project: Project, framework: str, model: str) -> None:
    assert sizes.measure(project(framework, model)).files <= sizes.MOST_FILES


@pytest.mark.parametrize("model", MODELS if EVERY else [LONGEST])
def test_training_loads_only_the_modules_at_the_top(project: Project, model: str) -> None:
    """Not the tests, and no component that is not installed.

    `test_imports.py` reads what each model.py imports.
    """
    done = run_python(
        project(FRAMEWORKS[0], model), str(PROGRAMS / "list_imported.py"), "proj.train", "proj"
    )
    assert done.returncode == 0, done.stderr
    loaded = {name.removeprefix("proj").removeprefix(".") for name in json.loads(done.stdout)}
    package = project(FRAMEWORKS[0], model) / "src/proj"
    modules = {file.stem for file in package.glob("*.py")} - {"__init__", "evaluate"}
    assert loaded == {"", "components", *modules}
    assert len(modules) + 2 <= 24


def test_lines_are_counted(tmp_path: Path) -> None:
    for name, text in {
        "README.md": "a\nb\n",
        "src/p/train.py": "1\n" * 7,
        "src/p/__pycache__/train.py": "1\n",
        "src/p/tests/test_train.py": "1\n2\n3\n",
        ".git/config": "",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert sizes.measure(tmp_path) == sizes.Size(3, 7, 3, 2, (7, "train.py"))
    assert (ROOT / "benchmarks/sizes.py").is_file()
