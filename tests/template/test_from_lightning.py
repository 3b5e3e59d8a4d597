"""What docs/how-to/from-lightning.md shows works, in each framework."""

import ast
import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from matrix import ENGINE_MODEL, FRAMEWORKS, ROOT, TEMPLATE
from program import PROGRAMS, Project
from warm import run_python

PAGE = (ROOT / "docs/how-to/from-lightning.md").read_text().replace("<package>", "proj")
TITLES = {"pytorch": "plain PyTorch", "lightning": "Lightning", "accelerate": "Accelerate"}
PARSED = ("fp16", "run.processes", "loader.workers", "optim.schedule")
"""Parts of the options that are only parsed: fp16 needs a GPU in Accelerate, and the projects' tests run the others."""


def table(first: str) -> list[dict[str, str]]:
    """Return the rows of the table whose first column has this title, by column."""
    found = re.search(rf"^(\| {first} \|.*)\n\|[-|]+\n((?:\|.*\n)+)", PAGE, re.MULTILINE)
    assert found, first
    titles, *rows = (
        [cell.strip() for cell in line.strip("|").split("|")] for line in [found[1], *found[2].split("\n")]
    )
    return [dict(zip(titles, row, strict=True)) for row in rows if row != [""]]


def code(text: str) -> list[str]:
    return re.findall(r"`([^`]+)`", text)


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def options_of(script: str) -> Iterator[list[str]]:
    """Return the options of each training command that a shell script would start."""
    done = subprocess.run(
        ["bash", "-ec", f'python() {{ echo "$@"; }}\n{script}'], capture_output=True, text=True, check=True
    )
    for line in done.stdout.splitlines():
        module, name, *options = shlex.split(line)
        assert (module, name) == ("-m", "proj.train")
        yield options


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_options_of_the_page_work(project: Project, tmp_path: Path, framework: str) -> None:
    """All are parsed, and a run has those of the tips together; of each key the last."""
    folder = project(framework, ENGINE_MODEL)
    tips = [cell for row in table("tip") for cell in code(row[TITLES[framework]])]
    options = [shlex.split(cell) for cell in tips if cell.startswith("--")]
    assert len(options) >= 8
    small = ["--config=configs/default.yaml", "--run.device=cpu", f"--run.dir={tmp_path}"]
    small += ["--train.steps=13", "--train.micro_batch=8", "--model.width=8", "--log.every=5"]
    together = [word for words in options if not any(part in words[0] + words[1] for part in PARSED) for word in words]
    parsed = options
    trained = [[*small, "--run.name=a", *together]]
    if framework == "lightning":
        folder = shutil.copytree(folder, tmp_path / "proj")
        script, extras = blocks("python")
        (folder / "find_lr.py").write_text(script)
        (folder / "src/proj/extras.py").write_text(extras)
        shown = [
            cell
            for first in ("Hydra", "LightningCLI", "`accelerate launch`")
            for row in table(first)
            for cell in code([*row.values()][1])
        ]
        parsed += [shlex.split(cell) for cell in shown if re.match(r"--\w+\.", cell)]
        parsed += [found for block in blocks("sh") for found in options_of(block)]
        for number, text in enumerate(blocks("yaml")):
            (tmp_path / f"{number}.yaml").write_text(text)
            parsed.append([f"--config={tmp_path}/{number}.yaml"])
        trained += [[*small, "--run.name=b", "--trainer.profiler", "simple"]]
    result = run_python(folder, str(PROGRAMS / "try_options.py"), json.dumps(parsed), json.dumps(trained))
    assert result.returncode == 0, result.stderr
    config = json.loads((tmp_path / "a/config.json").read_text())
    assert (config["train"]["accumulate"], config["optim"]["clip"], config["speed"]["precision"]) == (4, 0.5, "bf16")
    assert result.stderr.count("Profiler Report") == 2 * (framework == "lightning")
    if framework == "lightning":
        logged = (next((tmp_path / "b").rglob("metrics.csv"))).read_text().splitlines()[0].split(",")
        assert {"train/loss", "val/loss"} < {*logged}
        assert any(name.startswith("lr-") for name in logged)
        result = run_python(folder, "find_lr.py", *small, "--run.name=found")
        assert result.returncode == 0, result.stderr
        assert re.search(r"^optim.lr [\d.e-]+ optim.base_batch 8\ntrain.micro_batch \d+$", result.stdout, re.MULTILINE)


def test_arguments_that_the_config_decides_are_listed() -> None:
    tree = ast.parse((TEMPLATE / "frameworks/lightning/trainer_config.py").read_text()).body
    assigned = {ast.unparse(node.targets[0]): node.value for node in tree if isinstance(node, ast.Assign)}
    decided, refused, whole = (
        ast.literal_eval(assigned[name]) for name in ("DECIDED", "REFUSED_CALLBACKS", "NEED_WHOLE_WEIGHTS")
    )
    listed = {name: row["use"] for row in table("argument") for name in code(row["argument"])}
    assert listed.keys() == decided.keys()
    for name, instead in decided.items():
        assert all(key in listed[name] for key in re.findall(r"\w+\.\w+", instead.split(",")[0])), name
    assert [code(row["callback"])[0] for row in table("callback")] == [*refused, *whole]
