"""The options that 0.4 has moved: one table, which is a component of updated projects."""

import re
from collections.abc import Callable
from pathlib import Path

import yaml
from matrix import COMPONENTS, ROOT
from program import Fastproj
from updating import read_answers
from warm import run_python

MOVED: dict[str, str] = yaml.safe_load(
    (ROOT / "template/components/moved-options/renamed.yaml").read_text()
)


def test_text_says_whether_the_component_exists() -> None:
    for option, text in MOVED.items():
        named = re.search(r"in the component ([a-z-]+)(.*)", text)
        if named is None:
            assert "component" not in text, option
        elif named[1] in COMPONENTS:
            assert named[2] == f" (fastproj add {named[1]})", option
        else:
            assert named[2] == ", which does not exist yet", option


def test_updated_project_refuses_old_options_with_their_new_names(
    released: Callable[[str, str], Path], fastproj: Fastproj
) -> None:
    folder = released("0.3.0", "mlp")
    result = fastproj("update", cwd=folder)
    assert result.returncode == 0, result.stdout + result.stderr
    assert read_answers(folder)["components"] == ["moved-options"]
    (folder / "configs/old.yaml").write_text("checkpoint: {keep: 3}")
    for given, option in {
        "--config=configs/old.yaml": "checkpoint.keep",
        "--optim.name=sgd": "optim.name",
    }.items():
        assert refused(folder, given) == f"error: {option} is now {MOVED[option]}\n"


def refused(folder: Path, *options: str) -> str:
    """Return the message with which the training command refuses options."""
    result = run_python(folder, "-m", "proj.train", "--config=configs/default.yaml", *options)
    assert (result.returncode, result.stdout, result.stderr.count("\n")) == (1, "", 1), (
        result.stderr
    )
    return result.stderr
