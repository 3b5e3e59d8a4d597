"""`fastproj add`, `remove` and `components`, with the components of the real template."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from jinja2 import StrictUndefined
from jinja2.sandbox import SandboxedEnvironment
from matrix import COMPONENTS, EVERY, MODULES, QUESTIONS, UPDATE_SOURCE, module_of
from program import Fastproj
from updating import commit, git, project_state, read_answers, read_files

MakeNew = Callable[[], Path]


KINDS = ("launch", "workflow", "config", "file", "kind", "requires")
ONE_OF_EACH_KIND = ["ema", *(next(name for name in reversed(COMPONENTS) if kind in COMPONENTS[name]) for kind in KINDS)]
"""A class, a launch script, a workflow, a config, another file, a command, and one that requires another one."""


@pytest.fixture(scope="session")
def rendered(fastproj: Fastproj, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project without components."""
    folder = tmp_path_factory.mktemp("components")
    answers = ["--model=mlp", "--components=none", "--output", str(folder)]
    result = fastproj("new", "proj", "--yes", *answers)
    assert result.returncode == 0, result.stderr
    return folder / "proj"


@pytest.fixture
def make_new(rendered: Path, tmp_path: Path) -> MakeNew:
    """A copy of it, which the test may change."""
    return lambda: shutil.copytree(rendered, tmp_path / "proj", symlinks=True)


def everything(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Return the content and mode of each file, also in git's folder, except git's objects."""
    files = (file for file in folder.rglob("*") if file.is_file() and folder / ".git/objects" not in file.parents)
    return {str(file.relative_to(folder)): (file.read_bytes(), file.stat().st_mode) for file in files}


def source_of(component: str) -> list[str]:
    return ["--data", f"update_source={UPDATE_SOURCE}"] if component == "update-workflow" else []


def test_each_is_added_as_if_the_project_had_been_created_with_it_and_removed_to_the_byte(
    make_new: MakeNew, fastproj: Fastproj, tmp_path: Path
) -> None:
    folder = make_new()
    without = read_files(folder)
    for component in ONE_OF_EACH_KIND:
        before = read_files(folder)
        result = fastproj("add", component, *source_of(component), cwd=folder)
        assert result.returncode == 0, result.stdout + result.stderr
        check_added(component, read_files(folder).keys() - before.keys(), result.stdout)
        commit(folder)
    assert fastproj("add", *reversed(COMPONENTS), cwd=folder).returncode == 0
    commit(folder)
    (tmp_path / "all").mkdir()
    answers = ["--model=mlp", f"--components={','.join(COMPONENTS)}", f"--data=update_source={UPDATE_SOURCE}"]
    assert fastproj("new", "proj", "--yes", *answers, cwd=tmp_path / "all").returncode == 0
    assert read_files(folder) == read_files(tmp_path / "all/proj")
    assert read_files(folder)["README.md"] == without["README.md"], "else every `add` would edit it"
    result = fastproj("remove", *COMPONENTS, cwd=folder)
    assert result.returncode == 0, result.stdout + result.stderr
    assert read_files(folder) == without


def check_added(component: str, new: set[str], output: str) -> None:
    """Check the files of an added component, and what `add` says about them."""
    module = module_of(component)
    if component in MODULES:
        modules = [module, *map(module_of, COMPONENTS[component].get("requires", []))]
        files = {file for it in modules for file in (f"src/proj/components/{it}.py", f"src/proj/tests/test_{it}.py")}
        assert new <= files
        assert f"src/proj/components/{module}.py" in new
        kind = COMPONENTS[component].get("kind")
        assert (f"--{module}.enabled true" in output) == (kind is None)
        assert (f"  components/{module}.py; its first lines say how" in output) == (kind == "command")
    else:
        (file,) = new
        assert {file, Path(file).name} & {*map(str, COMPONENTS[component].values())}
        assert f"  {file}; its first lines say how" in output
    for file in new:
        assert f"  added     {file}\n" in output
    assert re.search(rf"git commit -m 'Add ([\w-]+, )?{component}'", output)


@pytest.mark.skipif(not EVERY, reason="each once more, alone: set EVERY_TEST=1")
@pytest.mark.parametrize("component", COMPONENTS)
def test_add_then_remove_restores_the_project_to_the_byte(
    component: str, make_new: MakeNew, fastproj: Fastproj
) -> None:
    folder = make_new()
    before = read_files(folder)
    assert fastproj("add", component, *source_of(component), cwd=folder).returncode == 0
    added: list[str] = read_answers(folder)["components"]  # type: ignore[assignment]
    assert {*added} == {component, *COMPONENTS[component].get("requires", [])}
    commit(folder)
    assert fastproj("remove", *added, cwd=folder).returncode == 0
    assert read_files(folder) == before


def test_dry_run_shows_the_changes_and_leaves_every_byte(make_new: MakeNew, fastproj: Fastproj) -> None:
    folder = make_new()
    before = everything(folder)
    shown = fastproj("add", "ema", "slurm", "--dry-run", cwd=folder)
    assert shown.returncode == 0, shown.stderr
    assert everything(folder) == before
    assert "+from .ema import Ema, EmaConfig" in shown.stdout
    assert "+++ b/launch/slurm.sbatch" in shown.stdout
    assert fastproj("add", "ema", "slurm", cwd=folder).returncode == 0
    commit(folder)
    before = everything(folder)
    shown = fastproj("remove", "ema", "--dry-run", cwd=folder)
    assert "-from .ema import Ema, EmaConfig" in shown.stdout
    assert everything(folder) == before


def test_adding_twice_and_removing_what_is_not_there_change_nothing(make_new: MakeNew, fastproj: Fastproj) -> None:
    folder = make_new()
    assert fastproj("add", "ema", cwd=folder).returncode == 0
    commit(folder)
    before = project_state(folder)
    for command, message in {"add ema": "has these components already", "remove oom": "does not have these"}.items():
        result = fastproj(*command.split(), cwd=folder)
        assert (result.returncode, result.stderr) == (0, "")
        assert message in result.stdout
        assert "nothing was changed" in result.stdout
    assert project_state(folder) == before


def test_remove_keeps_an_edited_file_and_says_so(make_new: MakeNew, fastproj: Fastproj) -> None:
    folder = make_new()
    assert fastproj("add", "ema", cwd=folder).returncode == 0
    file = folder / "src/proj/components/ema.py"
    with file.open("a") as opened:
        opened.write("MINE = 1\n")
    commit(folder)
    result = fastproj("remove", "ema", cwd=folder)
    assert result.returncode == 0, result.stdout + result.stderr
    assert file.read_text().endswith("MINE = 1\n")
    assert "yours     src/proj/components/ema.py: kept with your changes" in result.stdout
    assert not (folder / "src/proj/tests/test_ema.py").exists()
    assert "ema" not in (folder / "src/proj/components/__init__.py").read_text()


def test_add_merges_an_edited_registry_and_keeps_other_files(make_new: MakeNew, fastproj: Fastproj) -> None:
    folder = make_new()
    registry = folder / "src/proj/components/__init__.py"
    registry.write_text(registry.read_text().replace('"""The components', '"""Mine: the components'))
    (folder / "src/proj/model.py").write_text("# mine\n")
    commit(folder)
    result = fastproj("add", "ema", cwd=folder)
    assert result.returncode == 0, result.stdout + result.stderr
    assert registry.read_text().startswith('"""Mine: the components')
    assert "from .ema import" in registry.read_text()
    assert (folder / "src/proj/model.py").read_text() == "# mine\n"


def test_components_lists_each_in_a_line(make_new: MakeNew, fastproj: Fastproj) -> None:
    folder = make_new()
    assert fastproj("add", "ema", cwd=folder).returncode == 0
    result = fastproj("components", cwd=folder)
    assert [line.split()[0] for line in result.stdout.splitlines()] == list(COMPONENTS)
    assert [line.split()[0] for line in result.stdout.splitlines() if " installed " in line] == ["ema"]
    for line, entry in zip(result.stdout.splitlines(), COMPONENTS.values(), strict=True):
        assert line.endswith(entry["about"])
        assert len(line) <= 79
    outside = fastproj("components", cwd=folder.parent)
    assert outside.stdout.split() == result.stdout.replace(" installed ", "").split()


REFUSED: dict[str, tuple[list[str], int, str]] = {
    "unknown": (["add", "emma"], 2, "there is no component emma: did you mean ema?"),
    "unknown-remove": (["remove", "emma"], 2, "there is no component emma"),
    "no-source": (["add", "update-workflow"], 2, "answer it with --data update_source"),
    "nothing": (["add"], 2, "NAME"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusal_is_one_line_and_changes_nothing(case: str, make_new: MakeNew, fastproj: Fastproj) -> None:
    arguments, status, message = REFUSED[case]
    folder = make_new()
    before = project_state(folder)
    result = fastproj(*arguments, cwd=folder)
    assert (result.returncode, result.stdout) == (status, "")
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
    assert project_state(folder) == before


def test_add_needs_committed_files(make_new: MakeNew, fastproj: Fastproj) -> None:
    folder = make_new()
    (folder / "Makefile").write_text("mine\n")
    result = fastproj("add", "ema", cwd=folder)
    assert result.returncode == 1
    assert "Makefile changed since the last commit" in result.stderr
    assert (folder / "Makefile").read_text() == "mine\n"


TABLE = {
    "one": {"about": "the first"},
    "two": {"about": "needs the first", "requires": ["one"], "packages": {"tabulate>=0.9": "tables"}},
    "three": {"about": "replaces the first", "conflicts": ["one"]},
    "four": {"about": "for another framework", "frameworks": ["jax"]},
    "five": {"about": "in another framework", "frameworks": ["jax"], "instead": {"pytorch": "set `five`"}},
}


@pytest.fixture
def team(tmp_path: Path, fastproj: Fastproj) -> Path:
    """A project of a team's template, whose components depend on each other."""
    template = tmp_path / "template"
    (template / "project").mkdir(parents=True)
    questions = {
        "_subdirectory": "project",
        "project_name": {"type": "str"},
        "framework": {"type": "str", "default": "pytorch"},
        "component_table": {"type": "yaml", "when": False, "default": TABLE},
        "components": {
            "type": "str",
            "multiselect": True,
            "default": [],
            "choices": "{% for name, it in component_table.items() %}- {{ name }}\n{% endfor %}",
            "validator": QUESTIONS["components"]["validator"],
        },
    }
    (template / "copier.yml").write_text(yaml.safe_dump(questions, sort_keys=False))
    answers = "{{ _copier_answers | to_nice_yaml -}}\n"
    (template / "project/{{ _copier_conf.answers_file }}.jinja").write_text(answers)
    name = "{% yield name from components %}{{ name }}{% endyield %}.txt.jinja"
    (template / f"project/{name}").write_text("{% include 'parts/' ~ name -%}\n")
    (template / "parts").mkdir()
    for name in TABLE:
        (template / "parts" / name).write_text(f"{name}\n")
    git(tmp_path, "init", "-q", "template")
    commit(template)
    git(template, "tag", "v1.0.0")
    assert fastproj("new", "proj", "--yes", "--template", str(template), cwd=tmp_path).returncode == 0
    (template / "project/later.txt").write_text("of a newer version\n")
    commit(template)
    git(template, "tag", "v2.0.0")
    return tmp_path / "proj"


def test_add_stays_at_the_own_version_and_adds_what_is_required(team: Path, fastproj: Fastproj) -> None:
    result = fastproj("add", "two", cwd=team)
    assert result.returncode == 0, result.stdout + result.stderr
    assert (read_answers(team)["_commit"], read_answers(team)["components"]) == ("v1.0.0", ["one", "two"])
    assert (team / "one.txt").exists()
    assert not (team / "later.txt").exists()
    assert "  one is required\n" in result.stdout
    assert "make setup, which installs tabulate>=0.9" in result.stdout
    commit(team)
    refused = fastproj("remove", "one", cwd=team)
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert "two requires one" in refused.stderr
    assert fastproj("remove", "one", "two", cwd=team).returncode == 0
    assert not (team / "one.txt").exists()


@pytest.mark.parametrize("names", [["one", "three"], ["three", "one"]])
def test_components_that_exclude_each_other_are_refused_by_name(
    names: list[str], team: Path, fastproj: Fastproj
) -> None:
    both = fastproj("add", *names, cwd=team)
    assert (both.returncode, both.stderr.count("\n")) == (2, 1)
    assert fastproj("add", names[0], cwd=team).returncode == 0
    commit(team)
    result = fastproj("add", names[1], cwd=team)
    assert (result.returncode, result.stdout) == (2, "")
    assert "three and one exclude each other" in result.stderr


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        (["one", "two"], ""),
        (["two"], "two requires one."),
        (["one", "three"], "three and one exclude each other."),
        (["four"], "four does not work with pytorch."),
    ],
)
def test_questions_check_components_without_fastproj_too(chosen: list[str], message: str) -> None:
    validator = SandboxedEnvironment(undefined=StrictUndefined).from_string(QUESTIONS["components"]["validator"])
    found = validator.render(components=chosen, component_table=TABLE, framework="pytorch")
    assert " ".join(found.split()) == message


def test_component_of_another_framework_is_refused(team: Path, fastproj: Fastproj) -> None:
    reasons = {"four": "does not work with pytorch, but with jax", "five": "Pytorch has this: set `five`"}
    listed = fastproj("components", cwd=team).stdout.partition("Not for this project:\n")[2]
    for name, reason in reasons.items():
        result = fastproj("add", name, cwd=team)
        assert (result.returncode, result.stderr) == (1, f"fastproj: {name}: {reason}\n")
        assert re.search(f"^{name} +{re.escape(reason)}$", listed, re.MULTILINE)


def test_project_of_a_version_without_components_is_updated_first(
    released: Callable[[str, str], Path], fastproj: Fastproj
) -> None:
    folder = released("0.3.0", "mlp")
    for arguments in (["components"], ["add", "ema"], ["remove", "ema"]):
        result = fastproj(*arguments, cwd=folder)
        assert (result.returncode, result.stderr.count("\n")) == (1, 1)
        assert "update the project with fastproj update" in result.stderr
