"""`fastproj add`, `remove` and `components`, with components that depend on each other."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from fastproj.errors import FastprojError
from fastproj.template.answers import component_table
from jinja2 import StrictUndefined
from jinja2.sandbox import SandboxedEnvironment
from matrix import COMPONENTS, QUESTIONS
from program import Fastproj
from updating import MakeProject, commit, edit, git, project_state, read_answers

TABLE = {
    "one": {"about": "the first"},
    "two": {
        "about": "needs the first",
        "requires": ["one"],
        "packages": {"tabulate>=0.9": "tables"},
    },
    "three": {"about": "replaces the first", "conflicts": ["one"]},
    "four": {"about": "for another framework", "frameworks": ["jax"]},
    "five": {
        "about": "in another framework",
        "frameworks": ["jax"],
        "instead": {"pytorch": "set `five`"},
    },
}


@pytest.fixture(scope="session")
def rendered(tmp_path_factory: pytest.TempPathFactory, fastproj: Fastproj) -> Path:
    """A project of a team's template, whose components depend on each other."""
    folder = tmp_path_factory.mktemp("team")
    template = folder / "template"
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
    lines = "{% for name in components %}from {{ name }}\n{% endfor %}"
    (template / "project/registry.txt.jinja").write_text(f"The components.\n\n{lines}\nThe end.\n")
    git(folder, "init", "-q", "template")
    commit(template)
    git(template, "tag", "v1.0.0")
    fastproj("new", "proj", "--yes", "--template", str(template), cwd=folder)
    (template / "project/later.txt").write_text("of a newer version\n")
    commit(template)
    git(template, "tag", "v2.0.0")
    return folder / "proj"


@pytest.fixture
def team(rendered: Path, tmp_path: Path) -> Path:
    """A copy of it, which the test may change."""
    return shutil.copytree(rendered, tmp_path / "proj", symlinks=True)


def test_add_stays_at_the_own_version_and_adds_what_is_required(
    team: Path, fastproj: Fastproj
) -> None:
    result = fastproj("add", "two", cwd=team)
    assert (read_answers(team)["_commit"], read_answers(team)["components"]) == (
        "v1.0.0",
        ["one", "two"],
    )
    assert (team / "one.txt").exists()
    assert not (team / "later.txt").exists()
    assert "  one is required\n" in result.stdout
    assert "make setup, which installs tabulate>=0.9" in result.stdout
    commit(team)
    refused = fastproj("remove", "one", cwd=team, status=2)
    assert "two requires one: remove two as well" in refused.stderr
    fastproj("remove", "one", "two", cwd=team)
    assert not (team / "one.txt").exists()


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        (["one", "two"], ""),
        (["two"], "two requires one."),
        (["four"], "four does not work with pytorch."),
    ],
)
def test_questions_check_components_without_fastproj_too(chosen: list[str], message: str) -> None:
    validator = SandboxedEnvironment(undefined=StrictUndefined).from_string(
        QUESTIONS["components"]["validator"]
    )
    found = validator.render(components=chosen, component_table=TABLE, framework="pytorch")
    assert " ".join(found.split()) == message


def test_component_of_another_framework_is_refused(team: Path, fastproj: Fastproj) -> None:
    reasons = {
        "four": "does not work with pytorch, but with jax",
        "five": "Pytorch has this: set `five`",
    }
    listed = fastproj("components", cwd=team).stdout.partition("Not for this project:\n")[2]
    for name, reason in reasons.items():
        result = fastproj("add", name, cwd=team, status=1)
        assert result.stderr == f"fastproj: {name}: {reason}\n"
        assert re.search(f"^{name} +{re.escape(reason)}$", listed, re.MULTILINE)


def everything(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Return the content and mode of each file, also in git's folder, except git's objects."""
    files = (
        file
        for file in folder.rglob("*")
        if file.is_file() and folder / ".git/objects" not in file.parents
    )
    return {
        str(file.relative_to(folder)): (file.read_bytes(), file.stat().st_mode) for file in files
    }


def test_dry_run_shows_the_changes_and_leaves_every_byte(team: Path, fastproj: Fastproj) -> None:
    before = everything(team)
    shown = fastproj("add", "one", "--dry-run", cwd=team)
    assert everything(team) == before
    assert "+from one\n" in shown.stdout
    assert "+++ b/one.txt\n" in shown.stdout
    fastproj("add", "one", cwd=team)
    commit(team)
    before = everything(team)
    shown = fastproj("remove", "one", "--dry-run", cwd=team)
    assert "-from one\n" in shown.stdout
    assert everything(team) == before


def test_adding_twice_and_removing_what_is_not_there_change_nothing(
    team: Path, fastproj: Fastproj
) -> None:
    fastproj("add", "one", cwd=team)
    commit(team)
    before = project_state(team)
    for command, message in {
        "add one": "has these components already",
        "remove three": "does not have these",
    }.items():
        result = fastproj(*command.split(), cwd=team)
        assert message in result.stdout
        assert "nothing was changed" in result.stdout
    assert project_state(team) == before


def test_add_goes_on_from_what_is_staged(team: Path, fastproj: Fastproj) -> None:
    fastproj("add", "one", cwd=team)
    staged = git(team, "write-tree")
    result = fastproj("add", "two", "--dry-run", cwd=team)
    assert "+two" in result.stdout
    assert git(team, "write-tree") == staged
    result = fastproj("add", "two", cwd=team)
    assert read_answers(team)["components"] == ["one", "two"]
    assert (team / "registry.txt").read_text().count("from ") == 2
    for undo in result.stdout.strip().splitlines()[-1:-4:-2]:
        subprocess.run(
            ["sh", "-c", undo],
            cwd=team,
            check=True,
        )
        assert git(team, "write-tree") == staged, undo
        assert read_answers(team)["components"] == ["one"]
        fastproj("add", "two", cwd=team)
    assert " restore --source=" in result.stdout
    (team / "registry.txt").write_text("mine, not staged\n")
    refused = fastproj("add", "two", cwd=team, status=1)
    assert "registry.txt changed" in refused.stderr


def test_edited_files_are_merged_and_kept(team: Path, fastproj: Fastproj) -> None:
    edit(team / "registry.txt", "The components", "My components")
    commit(team)
    fastproj("add", "one", cwd=team)
    assert (team / "registry.txt").read_text() == "My components.\n\nfrom one\n\nThe end.\n"
    (team / "one.txt").write_text("mine\n")
    commit(team)
    result = fastproj("remove", "one", cwd=team)
    assert (team / "registry.txt").read_text() == "My components.\n\n\nThe end.\n"
    assert (team / "one.txt").read_text() == "mine\n"
    assert "yours     one.txt: kept with your changes" in result.stdout


def test_components_lists_each_in_a_line(team: Path, fastproj: Fastproj) -> None:
    result = fastproj("components", cwd=team.parent)
    blocks = [block.splitlines() for block in result.stdout.split("\n\n")]
    groups: dict[str, dict[str, str]] = {}
    for name, entry in COMPONENTS.items():
        if entry.get("kind") != "library":
            groups.setdefault(entry["group"].capitalize(), {})[name] = entry["about"]
    for heading, *lines in blocks:
        listed = dict(line.split(maxsplit=1) for line in lines)
        assert listed == groups.pop(heading.removesuffix(":"))
    assert groups == {}
    assert max(map(len, result.stdout.splitlines())) <= 79
    fastproj("add", "two", cwd=team)
    lines = fastproj("components", cwd=team).stdout.partition("\n\n")[0].splitlines()
    assert [line.split()[0] for line in lines] == ["one", "two", "three"]
    assert [line.split()[0] for line in lines if " installed " in line] == ["one", "two"]


REFUSED = {
    "unknown": (["add", "onne"], "there is no component onne: did you mean one?"),
    "unknown-remove": (["remove", "onne"], "there is no component onne"),
    "nothing": (["add"], "NAME"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusal_is_one_line_and_changes_nothing(case: str, team: Path, fastproj: Fastproj) -> None:
    arguments, message = REFUSED[case]
    before = project_state(team)
    result = fastproj(*arguments, cwd=team, status=2)
    assert result.stdout == ""
    assert message in result.stderr
    assert project_state(team) == before


def test_add_needs_committed_files(team: Path, fastproj: Fastproj) -> None:
    (team / "registry.txt").write_text("mine\n")
    result = fastproj("add", "one", cwd=team, status=1)
    assert "registry.txt changed since the last commit" in result.stderr
    assert (team / "registry.txt").read_text() == "mine\n"


def test_project_of_a_version_without_components_is_updated_first(
    make_project: MakeProject, fastproj: Fastproj
) -> None:
    folder = make_project("v0.3.0")
    for arguments in (["components"], ["add", "ema"], ["remove", "ema"]):
        result = fastproj(*arguments, cwd=folder, status=1)
        assert "fastproj status shows the newest one" in result.stderr


def release(team: Path, table: dict[str, object]) -> Path:
    """Publish a release of a copy of the team's template with other components."""
    recorded = Path(str(read_answers(team)["_src_path"]))
    template = Path(shutil.copytree(recorded, team.parent / "template"))
    file = template / "copier.yml"
    questions = yaml.safe_load(file.read_text())
    questions["component_table"]["default"] = table
    file.write_text(yaml.safe_dump(questions, sort_keys=False))
    for name in table:
        (template / f"parts/{name}").write_text(f"{name}\n")
    commit(template)
    git(template, "tag", "v3.0.0")
    return template


OTHER_TABLES: dict[str, tuple[dict[str, object], list[str], list[str]]] = {
    "dropped": ({"two": {"about": "alone now"}}, ["two"], ["one.txt"]),
    "renamed": (
        {"uno": {"about": "renamed"}, "two": {"about": "b", "requires": ["uno"]}},
        ["uno", "two"],
        ["one.txt"],
    ),
    "requires": (
        {"one": {"about": "a", "requires": ["base"]}, "two": TABLE["two"], "base": {"about": "b"}},
        ["one", "two", "base"],
        [],
    ),
    "framework": (
        {"one": {"about": "a", "frameworks": ["jax"]}, "two": {"about": "b"}},
        ["two"],
        ["one.txt"],
    ),
    "all": ({"other": {"about": "new"}}, [], ["one.txt", "two.txt"]),
}


@pytest.mark.parametrize("case", OTHER_TABLES)
def test_update_takes_other_requirements_and_leaves_dropped_components_to_the_user(
    case: str, team: Path, fastproj: Fastproj
) -> None:
    table, names, kept = OTHER_TABLES[case]
    fastproj("add", "two", cwd=team)
    commit(team)
    template = release(team, table)
    result = fastproj("update", "--template", str(template), cwd=team)
    assert read_answers(team)["components"] == names
    registry = (team / "registry.txt").read_text()
    assert re.findall("from (.*)", registry) == names
    assert {f"{name}.txt" for name in names} | set(kept) <= {file.name for file in team.iterdir()}
    for file in kept:
        assert f"yours     {file}: stays as yours; the template no longer has" in result.stdout


BROKEN_TABLES = {
    "5": "no names",
    "[a]": "no names",
    "{ema: null}": "no keys",
    "{ema: {}}": "no keys",
    "{5: {about: x}}": "no keys",
    "{ema: {about: 5}}": "ema has about: 5",
    "{ema: {about: x, requires: sam}}": "ema has requires: 'sam'",
    "{ema: {about: x, requires: [sam]}}": "ema requires sam",
    "{ema: {about: x, packages: [a]}}": "ema has packages: ",
    "{ema: {about: x, instead: jax}}": "ema has instead: ",
}


@pytest.mark.parametrize("table", BROKEN_TABLES)
def test_broken_table_is_named(table: str) -> None:
    questions = {"component_table": {"default": yaml.safe_load(table)}}
    with pytest.raises(FastprojError, match=BROKEN_TABLES[table]):
        component_table(questions)


def test_components_that_are_no_list_are_named(team: Path, fastproj: Fastproj) -> None:
    edit(team / ".copier-answers.yml", "components: []", "components: 5")
    commit(team)
    for command in (["components"], ["add", "one"], ["update"]):
        result = fastproj(*command, cwd=team, status=1)
        assert "components is 5, which is no list" in result.stderr


def test_files_follow_a_renamed_folder(
    make_project: MakeProject, fastproj: Fastproj, fork: Path
) -> None:
    """New files go where the user has the package, and the output says so."""
    folder = make_project("v0.3.0")
    git(folder, "mv", "src/proj", "src/net")
    edit(folder / "src/net/engine.py", "return 20", "return 21")
    commit(folder)
    (fork / "project/src/{{ package }}/ema.py").write_text("EMA = 1\n")
    (fork / "project/src/{{ package }}/deep").mkdir()
    (fork / "project/src/{{ package }}/deep/er.py").write_text("DEEP = 1\n")
    commit(fork)
    git(fork, "tag", "v0.4.0")
    result = fastproj("update", "--template", str(fork), cwd=folder)
    assert (folder / "src/net/ema.py").exists()
    assert (folder / "src/net/deep/er.py").exists()
    assert not (folder / "src/proj").exists()
    assert "src/proj is src/net here: new files go there" in result.stdout


def test_folder_that_both_renamed_keeps_the_name_of_the_user(
    make_project: MakeProject, fastproj: Fastproj, fork: Path
) -> None:
    """Also where the template leaves a file of the same name at the old place."""
    folder = make_project("v0.3.0")
    git(folder, "mv", "src/proj", "src/net")
    edit(folder / "src/net/engine.py", "return 20", "return 21")
    commit(folder)
    git(fork, "mv", "project/src/{{ package }}", "project/src/core")
    (fork / "project/src/core/ema.py").write_text("EMA = 1\n")
    (fork / "project/src/{{ package }}").mkdir()
    (fork / "project/src/{{ package }}/__init__.py").write_text("SHIM = 1\n")
    commit(fork)
    git(fork, "tag", "v0.4.0")
    fastproj("update", "--template", str(fork), cwd=folder)
    assert (folder / "src/net/ema.py").exists()
    assert "return 21" in (folder / "src/net/engine.py").read_text()
    shims = [file for file in folder.rglob("__init__.py") if "SHIM" in file.read_text()]
    assert len(shims) == 1
