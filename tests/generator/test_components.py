"""`fastproj add` and `remove` with the components of the real template."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from matrix import COMPONENTS, EVERY, MODULES, UPDATE_SOURCE, module_of
from program import Fastproj
from updating import commit, edit, read_answers, read_files

MakeNew = Callable[[], Path]


KINDS = ("launch", "workflow", "file", "kind", "requires")


def last_with(kind: str) -> str:
    return [name for name, entry in COMPONENTS.items() if kind in entry][-1]


ONE_OF_EACH_KIND = [
    "ema",
    *map(last_with, KINDS),
]
"""A class, a launch script, a workflow, another file, a command, one that requires another one."""


@pytest.fixture(scope="session")
def rendered(fastproj: Fastproj, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project without components."""
    folder = tmp_path_factory.mktemp("components")
    answers = ["--model=mlp", "--components=none", "--output", str(folder)]
    fastproj("new", "proj", "--yes", *answers)
    return folder / "proj"


@pytest.fixture
def make_new(rendered: Path, tmp_path: Path) -> MakeNew:
    """A copy of it, which the test may change."""
    return lambda: shutil.copytree(rendered, tmp_path / "proj", symlinks=True)


def source_of(component: str) -> list[str]:
    return ["--data", f"update_source={UPDATE_SOURCE}"] if component == "update-workflow" else []


def test_added_components_are_as_if_the_project_had_been_created_with_them_and_removed_to_the_byte(
    make_new: MakeNew, fastproj: Fastproj, tmp_path: Path
) -> None:
    chosen = [name for name in COMPONENTS if EVERY or name in ONE_OF_EACH_KIND]
    source = source_of("update-workflow")
    folder = make_new()
    without = read_files(folder)
    registry = folder / "src/proj/components/__init__.py"
    edit(registry, '"""The components', '"""Mine: the components')
    commit(folder)
    result = fastproj("add", *reversed(chosen), *source, cwd=folder)
    check_added(
        chosen,
        read_files(folder).keys() - without.keys(),
        result.stdout,
    )
    edit(registry, '"""Mine: the components', '"""The components')
    commit(folder)
    names = read_answers(folder)["components"]
    assert isinstance(names, list)
    assert {*chosen} <= {*names}
    (tmp_path / "created").mkdir()
    answers = ["--model=mlp", f"--components={','.join(names)}", *source]
    fastproj("new", "proj", "--yes", *answers, cwd=tmp_path / "created")
    assert read_files(folder) == read_files(tmp_path / "created/proj")
    assert read_files(folder)["README.md"] == without["README.md"], "else every `add` would edit it"
    fastproj("remove", *names, cwd=folder)
    assert read_files(folder) == without


def check_added(
    components: list[str],
    new: set[str],
    output: str,
) -> None:
    """Check the files of added components, and what `add` says about them."""
    expected = set()
    for component in components:
        module = module_of(component)
        if component in MODULES:
            modules = [module, *map(module_of, COMPONENTS[component].get("requires", []))]
            expected |= {f"src/proj/components/{it}.py" for it in modules}
            kind = COMPONENTS[component].get("kind")
            assert (f"--{module}.enabled true" in output) == (kind is None)
            assert (f"  components/{module}.py; its first lines say how" in output) == (
                kind == "command"
            )
        else:
            places = {*map(str, COMPONENTS[component].values())}
            (file,) = [it for it in new if {it, Path(it).name} & places]
            expected.add(file)
            assert f"  {file}; its first lines say how" in output
    tests = {file.replace("/components/", "/tests/test_") for file in expected}
    own = {"src/proj/component_list.py", "src/proj/components/predict_data.py"}
    assert expected <= new <= expected | tests | own
    for file in new:
        assert f"  added     {file}\n" in output
    assert re.search(f"git commit -m 'Add .*{components[-1]}", output)


@pytest.mark.test_all
@pytest.mark.parametrize("component", COMPONENTS if EVERY else ["each"])
def test_add_then_remove_restores_the_project_to_the_byte(
    component: str, make_new: MakeNew, fastproj: Fastproj
) -> None:
    folder = make_new()
    before = read_files(folder)
    fastproj("add", component, *source_of(component), cwd=folder)
    added: list[str] = read_answers(folder)["components"]  # type: ignore[assignment]
    assert {*added} == {component, *COMPONENTS[component].get("requires", [])}
    commit(folder)
    fastproj("remove", *added, cwd=folder)
    assert read_files(folder) == before
