"""Project names: which are refused, and why."""

import keyword
import re
import sys
from pathlib import Path

import pytest
from fastproj.creating import names
from fastproj.errors import FastprojError
from matrix import COMPONENTS, TEMPLATE
from program import Fastproj

BAD = [
    "",
    ".",
    "..",
    "a/b",
    "/a",
    "a\\b",
    "$(x)",
    "`x`",
    "a b",
    "a\nb",
    "a\tb",
    "x" * 300,
    "x" * 61,
    "class",
    "match",
    "None",
    "import",
    "torch",
    "numpy",
    "sklearn",
    "scikit-learn",
    "fastproj",
    "fastproj-cli",
    "json",
    "email",
    "test",
    "tests",
    "src",
    "runs",
    "é",
    "проект",
    "a\u202eb",
    "A",
    "MyProject",
    "1a",
    "_a",
    "a-",
    "a_",
    "a.b",
    "a'b",
    'a"b',
    "a|b",
    "{{x}}",
    "{% x %}",
    "~",
    "~/x",
    "*",
    "a:b",
    "\x00",
    "a\x7f",
    " a",
    "a ",
    "--help-me",
    "-rf",
]


@pytest.mark.parametrize("name", BAD, ids=ascii)
def test_bad_names_are_refused(name: str) -> None:
    with pytest.raises(FastprojError) as refusal:
        names.check(name)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    "name",
    [
        "a",
        "my-project",
        "my_project",
        "resnet50",
        "x" * 60,
        "a1",
        "connect",
        "torch-lab",
    ],
)
def test_good_names_pass(name: str) -> None:
    names.check(name)
    assert name.replace("-", "_").isidentifier()


def test_suggested_name_is_accepted() -> None:
    for name in [
        *keyword.kwlist,
        *sys.stdlib_module_names,
        "torch",
        "MyProject",
        "my project",
        "a.b",
    ]:
        try:
            names.check(name)
        except FastprojError as refusal:
            if suggested := re.search(r"(?:such as|for example) ([a-z0-9_-]+)$", str(refusal)):
                names.check(suggested[1])


def test_requirements_are_refused_as_project_names() -> None:
    files = [TEMPLATE / "project/pyproject.toml.jinja", *TEMPLATE.glob("*/*/requirements")]
    texts = "\n".join(file.read_text() for file in files)
    required = re.findall(r'(?m)^    "([\w-]+)[\[<>=]', texts)
    assert {"torch", "numpy", "pytest", "lightning", "accelerate", "pandas"} <= {*required}
    for entry in COMPONENTS.values():
        required += [re.split(r"[\[<>=]", package)[0] for package in entry.get("packages", {})]
    for package in required:
        with pytest.raises(FastprojError, match="a package that the project uses"):
            names.check(package.lower().replace("_", "-"))


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "a/b",
        "$(x)",
        "a\nb",
        "x" * 300,
        "class",
        "torch",
        "é",
        "-rf",
    ],
    ids=ascii,
)
def test_bad_name_is_a_one_line_error(name: str, fastproj: Fastproj, tmp_path: Path) -> None:
    result = fastproj(
        "new",
        name,
        "--yes",
        "--output",
        str(tmp_path),
        cwd=tmp_path,
        status=None,
    )
    assert result.returncode in (1, 2)
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1
    assert result.stderr.startswith("fastproj: ")
    assert list(tmp_path.iterdir()) == []
