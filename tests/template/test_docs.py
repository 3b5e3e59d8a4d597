"""The documentation builds without warnings, and documents existing keys and defaults."""

import ast
import json
import os
import re
import shlex
import subprocess
import sys
from html import unescape
from itertools import chain
from pathlib import Path
from statistics import median

import links
import pytest
import recording
import reference
import yaml
from fastproj.cli import app
from fastproj.runs.bench import in_the_core
from matrix import COMPONENTS, ENGINE_MODEL, FRAMEWORKS, MODELS, MODULES, ROOT, module_of
from program import Fastproj, Project
from typer.main import get_command
from warm import run_python

OTHERS = ("changelog.md", "lightning.md")
PAGES = [file for file in sorted((ROOT / "docs").rglob("*.md")) if file.name not in OTHERS]
"""All but those that name keys of older versions, or of Lightning."""
SECTIONS = "|".join(
    ["run", "data", "model", "train", "loader", "optim", "speed", "log", *map(module_of, MODULES)]
)


PACKAGE = ROOT / "template/frameworks/pytorch"
SHARED = ROOT / "template/project/src/{{ package }}"
NOT_KEYS = (
    {
        "model.blocks",
        "model.ignored",
        "model.safetensors",
        "lr_range_test.json",
        "lr_range_test.png",
    }
    | {"metrics.jsonl", "mlflow.db", "mlflow-skinny"}
    | {"data.py", "model.py", "train.py", "data.png"}
)
"""Files and functions whose names look like keys."""
for file in [
    *PACKAGE.glob("*.py"),
    *SHARED.glob("*.py"),
    *ROOT.glob("template/data/*/data.py"),
    *ROOT.glob("template/models/*/model.py"),
]:
    functions = re.findall(r"^def (\w+)", file.read_text(), re.MULTILINE)
    NOT_KEYS |= {f"{file.stem}.{name}" for name in ["py", *functions]}


@pytest.fixture(scope="session")
def defaults() -> dict[str, set[str]]:
    """Every key of the rendered projects with its defaults in all models."""
    found: dict[str, set[str]] = {}
    components = ROOT.glob("template/components/*/component.py")
    for file in [
        PACKAGE / "config.py",
        *components,
        *reference.modules("data"),
        *reference.modules("model"),
    ]:
        for section, _, keys in reference.sections(file):
            for key in keys:
                found.setdefault(f"{section}.{key.name}", set()).add(key.default)
    return found


def test_keys_are_those_of_a_project(project: Project, defaults: dict[str, set[str]]) -> None:
    result = run_python(
        project(FRAMEWORKS[0], ENGINE_MODEL, "nodes"), "-m", "proj.train", "--print_config"
    )
    printed = yaml.safe_load(result.stdout)
    shown = set()
    for section, values in printed.items():
        shown |= {f"{section}.{key}" for key in values}
    assert shown <= defaults.keys()
    assert {key for key in defaults if not key.startswith(("data.", "model."))} <= shown


def test_site_builds_without_warnings(tmp_path: Path) -> None:
    result = subprocess.run(
        [
            sys.executable,
            "-m",
            "mkdocs",
            "build",
            "--strict",
            "--site-dir",
            str(tmp_path / "site"),
        ],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert "WARNING" not in result.stderr
    assert (tmp_path / "site/index.html").exists()
    assert not (tmp_path / "site/programs").exists()
    assert links.broken(tmp_path / "site") == []


def test_checker_finds_broken_links(tmp_path: Path) -> None:
    page = '<p id="here"><a href="#here">1</a><a href="#gone">2</a>'
    page += '<a href="b.html#there">3</a><img src="no.svg">'
    (tmp_path / "a.html").write_text(
        page + '<a href="http://example.org">4</a><a href="https://example.org">5</a>'
    )
    (tmp_path / "b.html").write_text(
        '<p id="there"><a href="a.html#where">6</a><a href="gone.html">7</a>'
    )
    found = [
        "a.html: #gone",
        "a.html: no.svg",
        "a.html: http://example.org",
        "b.html: a.html#where",
        "b.html: gone.html",
    ]
    assert links.broken(tmp_path) == found
    (tmp_path / "R.md").write_text(
        "# One two\n[1](#one-two) [2](#three) [3](gone.md) `[4](code)` [5](a.html)\n"
    )
    assert links.broken_in(tmp_path / "R.md") == ["R.md: #three", "R.md: gone.md"]


def test_links_of_markdown_files_in_the_top_folder_work() -> None:
    assert [*chain.from_iterable(map(links.broken_in, ROOT.glob("*.md")))] == []


def test_changelog_has_no_links() -> None:
    """`fastproj update` prints it in a terminal, and it is a page of the site."""
    assert "](" not in (ROOT / "CHANGELOG.md").read_text()


def test_reference_is_current() -> None:
    for file, text in reference.files().items():
        assert file.read_text() == text, f"{file.name}: run python docs/programs/reference.py"


def test_quoted_messages_exist() -> None:
    """In the source of the program or of the template, between the parts that differ."""
    files = [*(ROOT / "generator").rglob("*.py"), *(ROOT / "template").rglob("*.py")]
    source = " ".join(_texts(file) for file in files if "test" not in file.name)
    page = (ROOT / "docs/reference/errors.md").read_text()
    messages = [text for _, text in re.findall(r"^\| (``?)(.*?)\1 \| ", page, re.MULTILINE)]
    assert len(messages) > 30
    for message in messages:
        for part in re.split(r"<[\w ]+>|\.copier-answers\.yml|: ", message):
            assert part.strip() in source, f"{message}: {part!r}"


def _texts(file: Path) -> str:
    """Return the strings of a module; adjacent ones are one, and values in them are left out."""
    tree = ast.parse(file.read_text())
    return " ".join(str(node.value) for node in ast.walk(tree) if isinstance(node, ast.Constant))


def test_recording_shows_current_texts_and_numbers(
    fastproj: Fastproj, project: Project, tmp_path: Path
) -> None:
    shown = [unescape(line) for line in re.findall(r">(.*)</text>", recording.FILE.read_text())]
    assert [line for line in shown if line.startswith("$ ")] == [
        f"$ {command}" for command in recording.COMMANDS[:2]
    ] + [recording.SETUP, f"$ {recording.COMMANDS[2]}"]
    end = shown.index(f"$ {recording.COMMANDS[1]}")
    result = fastproj(
        *recording.COMMANDS[0].split()[1:],
        "--gpus",
        "0",
        cwd=tmp_path,
    )
    assert " ".join(" ".join(shown[1:end]).split()) == " ".join(result.stdout.split()), (
        "record it again"
    )
    options = ("--config=configs/default.yaml", "--run.dir", str(tmp_path), "--run.hours=1e-9")
    stopped = run_python(
        project(FRAMEWORKS[0], reference.SHOWN_MODEL), "-m", "proj.train", *options, status=75
    )
    first = next(place for place, line in enumerate(shown) if line.startswith("runs/first: "))
    assert _first_lines(shown[first:]) == _first_lines(stopped.stdout.splitlines()), (
        "record it again"
    )
    ((metric, value),) = re.findall(
        r"^\| validation `(\w+)` [^|]*\| ([\d.]+) ", _page(reference.SHOWN_MODEL), re.M
    )
    assert f"{metric} {value}" in next(line for line in shown if line.startswith("done after"))
    assert not any("Traceback" in line for line in shown)


@pytest.mark.parametrize(
    "page",
    PAGES,
    ids=lambda page: str(page.relative_to(ROOT / "docs")),
)
def test_documented_keys_and_defaults_exist(page: Path, defaults: dict[str, set[str]]) -> None:
    text = page.read_text()
    named = set(re.findall(rf"(?:`|--)((?:{SECTIONS})\.[a-z][a-z0-9_]*)(?=[`:= ])", text))
    assert {key for key in named if key not in defaults} - NOT_KEYS == set()
    for table in re.findall(r"^\| key \| default \|.*\n((?:\|.*\n)+)", text, re.MULTILINE):
        for key, shown in re.findall(
            rf"^\| `((?:{SECTIONS})\.\w+)` \| `([^`]*)` \|", table, re.MULTILINE
        ):
            assert any(_same(shown, default) for default in defaults[key]), f"{page.name}: {key}"


def _same(first: str, second: str) -> bool:
    """Whether two values are written equally, or are the same number."""
    numbers = all(re.fullmatch(r"[-+\d.e]+", text) for text in (first, second))
    return float(first) == float(second) if numbers else first == second


def test_documented_commands_exist() -> None:
    commands = get_command(app).commands  # type: ignore[attr-defined]
    allowed = {}
    for name, command in commands.items():
        options = [[*it.opts, *it.secondary_opts] for it in command.params]
        allowed[name] = {*chain.from_iterable(options)}
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    texts = "\n".join(page.read_text() for page in pages)
    blocks = re.findall(r"^```(\w*)\n(.*?)^```", texts, re.M | re.S)
    shell = "".join(block for kind, block in blocks if not kind)
    lines = [line for line in shell.splitlines() if line.startswith("fastproj ")]
    assert len(lines) > 20
    for line in lines:
        _, name, *words = shlex.split(line, comments=True)
        assert {word.split("=")[0] for word in words if word.startswith("-")} <= allowed[name], line


def test_documented_components_and_techniques_exist() -> None:
    known = {
        "add": {*COMPONENTS, "NAME"},
        "remove": {*COMPONENTS},
        "bench": {*in_the_core(), *COMPONENTS, "NAME"},
    }
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")]
    texts = "\n".join(page.read_text() for page in pages)
    pattern = r"fastproj (add|remove|bench)((?: [a-zA-Z][\w-]*)+)(?: --|  #|`|$)"
    found = []
    for command, names in re.findall(pattern, texts, re.M):
        found += [(command, name) for name in names.split()]
    assert len(found) > 60
    assert [(command, name) for command, name in found if name not in known[command]] == []


def test_each_component_has_its_section_in_the_page_of_its_group() -> None:
    """In the order of the table, with the command that adds it, and with the file that it adds."""
    pages = reference.component_pages()
    assert sorted((ROOT / "docs/components").iterdir()) == sorted(pages)
    nav = (ROOT / "mkdocs.yml").read_text()
    for page, names in pages.items():
        _, *parts = re.split(
            r"^## (.*)$",
            page.read_text(),
            flags=re.MULTILINE,
        )
        assert parts[::2] == names, page.name
        assert f": components/{page.name}\n" in nav
        for name, text in zip(
            names,
            parts[1::2],
            strict=True,
        ):
            files = [
                COMPONENTS[name][kind]
                for kind in ("file", "launch", "workflow")
                if kind in COMPONENTS[name]
            ]
            assert all(f"{file}`" in text for file in files), name


def test_readme_has_the_measured_results() -> None:
    """With as many digits as it shows."""
    readme = (ROOT / "README.md").read_text()
    assert len(readme.splitlines()) <= 110
    for model in MODELS:
        ((shown, percent),) = re.findall(
            rf"^\| `{model}` \|.*\| \D*?([\d.]+)(%?)[^|]*\|$", readme, re.MULTILINE
        )
        (measured,) = re.findall(
            r"^\| validation `\w+` [^|]*\| ([\d.]+) ", _page(model), re.MULTILINE
        )
        digits = len(shown.partition(".")[2])
        assert float(shown) == round(float(measured) * (100 if percent else 1), digits), model
    shown = re.findall(r"bf16 trains `resnet` ([\d.]+) times", readme)
    results = json.loads((ROOT / "benchmarks/techniques.json").read_text())
    measured = median(results["resnet"]["techniques"]["bf16"]["ratios"])
    assert shown == [f"{measured:.2f}"]


def _first_lines(lines: list[str]) -> list[str]:
    """What a run prints before its first row, without the folder and the precision."""
    return [re.sub(r"^\S*/\S+: |, (bf16|fp32)$", "", line) for line in lines[:4]]


def _page(model: str) -> str:
    return (ROOT / f"docs/models/{model}.md").read_text()


MODEL_HEADINGS = ["Sizes", "Results", "Use"]


@pytest.mark.parametrize("model", MODELS)
def test_model_page_has_sizes_results_and_image(model: str) -> None:
    text = (ROOT / f"docs/models/{model}.md").read_text()
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == MODEL_HEADINGS
    assert re.search(r"\| target \|.*\n\|[-|]+\|\n\| validation `\w+` ", text), (
        "benchmarks/models.py fills it"
    )
    assert f"]({model}.png)" in text
    assert (ROOT / f"docs/models/{model}.png").stat().st_size < 300_000
    assert f"models/{model}.md" in (ROOT / "mkdocs.yml").read_text()
    tree = ast.parse((ROOT / f"template/models/{model}/model.py").read_text())
    assigned = [node for node in tree.body if isinstance(node, ast.AnnAssign | ast.Assign)]
    tables = [node for node in assigned if re.match(r"SIZES\b", ast.unparse(node))]
    names: list[str] = []
    for table in tables:
        names += map(ast.literal_eval, table.value.keys)  # type: ignore[union-attr]
    sizes = re.findall(r"^\| `([^`]+)` \|", text, re.MULTILINE)
    assert sizes[1:] == [str(name) for name in names], "after the table's head"
