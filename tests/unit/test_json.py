"""`--json`: one object on standard output, with the documented keys, also after an error."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

from edits import edited_same_line
from fastproj.errors import as_object
from fastproj.show import json_text
from matrix import ROOT
from program import Fastproj, documented_keys
from updating import MakeProject, commit


def run(fastproj: Fastproj, *arguments: str, cwd: Path, status: int = 0) -> dict[str, Any]:
    result = fastproj(*arguments, "--json", cwd=cwd, status=status)
    facts: dict[str, Any] = json.loads(result.stdout)
    return facts


def test_new_says_how_to_render_the_same_project_again(fastproj: Fastproj, tmp_path: Path) -> None:
    options = ["--author", "A B", "--components", "ema", "--data", "agents=false", "--no-git"]
    facts = run(fastproj, "new", "proj", "--yes", *options, cwd=tmp_path)
    assert facts.keys() == documented_keys("new")
    (tmp_path / "other").mkdir()
    again = shlex.split(facts["again"])
    text = fastproj(*again[1:], cwd=tmp_path / "other").stdout
    assert text.endswith(f"The same project again:\n  {facts['again']}\n")
    for file in (tmp_path / "proj").rglob("*"):
        if file.is_file():
            assert (
                tmp_path / "other" / file.relative_to(tmp_path)
            ).read_bytes() == file.read_bytes()


def test_detect_has_the_documented_keys(fastproj: Fastproj, tmp_path: Path) -> None:
    assert run(fastproj, "detect", cwd=tmp_path).keys() == documented_keys("detect")


def test_components_are_described(fastproj: Fastproj, tmp_path: Path) -> None:
    (ema,) = [
        component
        for component in run(fastproj, "components", cwd=tmp_path)["components"]
        if component["name"] == "ema"
    ]
    facts = run(fastproj, "components", "ema", cwd=tmp_path)
    assert facts.keys() == documented_keys("components NAME")
    assert ema.items() <= facts.items()
    decay = facts["options"]["ema.decay"]
    assert (decay["type"], decay["range"], decay["default"]) == ("float", "(0, 1)", "0.999")
    assert "fastproj add ema" in facts["page"]
    text = fastproj("components", "ema").stdout
    assert facts["page"] in text
    assert decay["about"] in text
    error = run(fastproj, "components", "emma", cwd=tmp_path, status=2)
    assert error["error"] == "there is no component emma"
    assert error["hint"].startswith("did you mean ema?")


def test_update_names_files_conflicts_and_commands(
    make_project: MakeProject, fastproj: Fastproj
) -> None:
    folder = make_project("v0.1.0")
    assert run(fastproj, "status", cwd=folder, status=3).keys() == documented_keys("status")
    planned = run(fastproj, "update", "--dry-run", cwd=folder)
    facts = run(fastproj, "update", cwd=folder)
    assert facts.keys() == planned.keys() == documented_keys("update")
    assert planned["files"] == facts["files"] != {}
    assert (planned["next"], facts["next"][0]) == ([], "git diff --staged")
    commit(folder)
    again = run(fastproj, "update", cwd=folder)
    assert (again["up_to_date"], again["files"], again["next"]) == (True, {}, [])


def test_conflicts_are_named(make_project: MakeProject, fastproj: Fastproj) -> None:
    folder = make_project()
    edited_same_line(folder)
    commit(folder)
    facts = run(fastproj, "update", cwd=folder, status=4)
    assert facts["conflicts"] == ["src/proj/engine.py"]
    assert facts["files"]["src/proj/engine.py"] == "conflict"
    assert facts["next"] == ["git cherry-pick --continue"]


def test_commands_of_the_skill_succeed(fastproj: Fastproj, tmp_path: Path) -> None:
    text = (ROOT / "skills/fastproj/SKILL.md").read_text()
    block = text.split("```")[1]
    for command in block.split("\n")[1:-1]:
        facts = run(
            fastproj,
            *command.removesuffix(" --json").split()[1:],
            cwd=tmp_path,
        )
        assert "error" not in facts
    in_text = re.findall(r"`fastproj ([\w -]+)`", text)
    assert len(in_text) >= 4
    for command in in_text:
        words = command.removesuffix(" --json").split()
        if words[0] in ("report", "compare"):
            words = [words[0], "--help"]
        fastproj(*words, cwd=tmp_path)


def test_error_is_an_object_with_the_same_status(fastproj: Fastproj, tmp_path: Path) -> None:
    facts = run(fastproj, "status", cwd=tmp_path, status=1)
    assert facts.keys() == {"error", "hint"}
    assert "there is no .copier-answers.yml" in facts["error"]
    facts = run(
        fastproj,
        "new",
        "x",
        "--modle",
        "gpt",
        cwd=tmp_path,
        status=2,
    )
    assert facts["error"] == "No such option: --modle."
    assert facts["hint"] == "Did you mean --model or --nodes? See fastproj new --help."
    assert json.loads(as_object("interrupted"))["error"] == "interrupted"


def test_report_has_the_facts_of_the_run(fastproj: Fastproj, tmp_path: Path) -> None:
    rows = [
        {"split": "train", "step": 1, "loss": 2.0, "samples_per_second": 5.0, "seconds": 1.0},
        {"split": "val", "step": 1, "loss": 1.0, "seconds": 2.0},
        {"split": "train", "step": 2, "loss": float("nan"), "samples_per_second": 5, "seconds": 3},
        {"split": "val", "step": 2, "loss": 3.0, "seconds": 4.0},
    ]
    for name in ("a", "b"):
        (tmp_path / f"runs/{name}").mkdir(parents=True)
        lines = "".join(f"{json.dumps(row)}\n" for row in rows)
        (tmp_path / f"runs/{name}/metrics.jsonl").write_text(lines)
    (tmp_path / "runs/a/summary.json").write_text(
        '{"exit": "stopped", "peak_memory_mb": 7.0, "x": 1}'
    )
    facts = run(fastproj, "report", "a", "b", cwd=tmp_path)
    assert facts.keys() == documented_keys("report")
    assert facts["runs"][0].keys() == facts["runs"][1].keys()
    first, second = facts["runs"]
    assert (first["exit"], first["peak_memory_mb"], second["exit"]) == ("stopped", 7.0, None)
    assert (first["best"]["loss"], first["last"]["loss"]) == (1.0, 3.0)
    assert (first["steps"], first["seconds"], first["samples_per_second"]) == (2, 4.0, 5.0)
    assert Path(tmp_path, facts["page"]).is_file()


def test_numbers_that_are_not_finite_are_null() -> None:
    assert json.loads(json_text({"a": float("nan"), "b": [float("-inf"), 1.5]})) == {
        "a": None,
        "b": [None, 1.5],
    }
