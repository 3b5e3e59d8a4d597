"""The documentation builds without warnings, has one form, and documents existing keys and defaults."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from matrix import FRAMEWORKS, MODELS, ROOT
from program import Project
from warm import run_python

PAGES = sorted(page for page in (ROOT / "docs/techniques").glob("*.md") if page.name != "index.md")
OTHERS = [ROOT / "docs/techniques/index.md", *sorted((ROOT / "docs/models").glob("*.md"))]
HEADINGS = [
    "What it does",
    "When to use it",
    "Published claims",
    "Options",
    "Measurements",
    "Implementation",
]
SECTIONS = "run|data|model|train|loader|optim|dist|speed|log|checkpoint|debug"


PACKAGE = ROOT / "template/project/src/{{ package }}"
NOT_KEYS = (
    {"model.blocks"}
    | {
        f"{file.stem}.{name}"
        for file in [*PACKAGE.glob("*.py"), *PACKAGE.glob("techniques/*.py"), *ROOT.glob("template/data/*/data.py")]
        for name in ["py", *re.findall(r"^def (\w+)", file.read_text(), re.MULTILINE)]
    }
    | {"data.py", "model.py", "train.py"}
)
"""Files and functions whose names look like keys."""


@pytest.fixture(scope="session")
def defaults(project: Project) -> dict[str, object]:
    """Every key of the rendered projects with its default, for all models."""
    found: dict[str, object] = {}
    for model in MODELS:
        folder = project(FRAMEWORKS[0], model)
        result = run_python(folder, "-m", "proj.train", "--print_config")
        assert result.returncode == 0, result.stderr
        for section, values in yaml.safe_load(result.stdout).items():
            found |= {f"{section}.{key}": value for key, value in values.items()}
    return found


def test_site_builds_without_warnings(tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert "WARNING" not in result.stderr
    assert (tmp_path / "site/techniques/compile.html").exists()


def test_index_links_every_technique_page() -> None:
    assert len(PAGES) == 23
    index = (ROOT / "docs/techniques/index.md").read_text()
    assert all(f"]({page.name})" in index for page in PAGES)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_technique_page_has_all_sections(page: Path) -> None:
    text = page.read_text()
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == HEADINGS
    table = re.search(r"^\| comparison \|.*\n\|[-|]+\|\n((?:\|.*\n)+)", text, re.MULTILINE)
    assert table is not None, "a table of measurements"
    for row in table[1].splitlines():
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        assert len(cells) == 6
        assert all(cells)


@pytest.mark.parametrize("page", [*PAGES, *OTHERS], ids=lambda page: page.stem)
def test_documented_keys_and_defaults_exist(page: Path, defaults: dict[str, object]) -> None:
    text = page.read_text()
    named = set(re.findall(rf"`((?:{SECTIONS})\.[a-z][a-z0-9_]*)(?=[`:= ])", text))
    assert {key for key in named if key not in defaults} - NOT_KEYS == set()
    for key, shown in re.findall(rf"^\| `((?:{SECTIONS})\.\w+)` \| `([^`]*)` \|", text, re.MULTILINE):
        expected = defaults[key]  # `off` is a word here, and false to YAML
        assert shown == expected or yaml.safe_load(shown) == expected, f"{page.name}: {key}"


def test_every_technique_is_documented() -> None:
    pages = "\n".join(page.read_text() for page in PAGES)
    missing = [
        file.name for file in PACKAGE.glob("techniques/*.py") if file.name != "__init__.py" and file.name not in pages
    ]
    assert missing == []


MODEL_HEADINGS = ["Overview", "Sizes", "Results", "Your own data", "After training"]


@pytest.mark.parametrize("model", MODELS)
def test_model_page_has_sizes_results_and_image(model: str) -> None:
    text = (ROOT / f"docs/models/{model}.md").read_text()
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == MODEL_HEADINGS
    assert re.search(r"\| target \|.*\n\|[-|]+\|\n\| validation `\w+` ", text), "benchmarks/models.py fills it"
    assert f"]({model}.png)" in text
    assert (ROOT / f"docs/models/{model}.png").stat().st_size < 300_000
    assert f"models/{model}.md" in (ROOT / "mkdocs.yml").read_text()
    tree = ast.parse((ROOT / f"template/models/{model}/model.py").read_text())
    tables = [node for node in tree.body if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "SIZES"]
    names = [ast.literal_eval(key) for table in tables for key in table.value.keys]  # type: ignore[union-attr]
    sizes = re.findall(r"^\| `([^`]+)` \|", text, re.MULTILINE)
    assert sizes[1:] == [str(name) for name in names], "after the table's head"
