"""Rendered projects pass their own tests, train to the expected metric, and start on two ranks."""

import json
import operator
import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from matrix import (
    COVER,
    ENGINE_MODEL,
    EVERY,
    FRAMEWORKS,
    MODELS,
    PAIRS,
    PROJECTS,
    TEMPLATE,
    WITHOUT_TORCHRUN,
    first_with,
)
from program import Project, run_in
from warm import run_python

OVERFITS = ["--deselect", "src/proj/tests/test_model.py::test_model_overfits_one_batch"]
"""Pytest options for a model whose recipe shows more."""
GRAPH_BREAKS = "test_techniques.py::test_no_graph_breaks_or_recompiles_after_the_first_validation"
ACTS = "test_techniques.py::test_technique_acts_and_losses_agree"
COMPILED = [f"{GRAPH_BREAKS}[blocks]", f"{GRAPH_BREAKS}[model]", f"{ACTS}[compile blocks]"]
OTHERS = [
    f"test_optimizers.py::test_optimizer_learns_and_resumes[{name}]" for name in ("sgd", "lamb", "lars", "novograd")
]
OTHERS.append("test_nonfinite.py::test_ranks_skip_a_step_of_which_one_is_bad")
SHOWN_BY_THE_LOOP = [option for name in COMPILED + OTHERS for option in ("--deselect", f"src/proj/tests/{name}")]
"""Pytest options for a framework that is not the first: that "compile the model" has equal losses is enough there, and
so is one optimizer of torch and one of ours, and one rank that skips a step.
"""
EXPORT = "test_task.py::test_exported_model_equals_the_original"


def rendered_tests(framework: str, model: str) -> list[str]:
    """Return the pytest arguments for a project: which of its tests check a fact that no other project's tests check.

    The tests of the network, the data and the task run for the first model that has them. The engine's run with the
    fastest model: all with the first framework, and with the others those of the loop, and between them those that
    train. The channels-last test needs convolutions.

    `make test-all` runs every test of each model with the first framework and of the engine's model with the others,
    and the tests of the loop in all other projects: these have equal losses, and no file of their own.
    """
    engine = sorted(file.name for file in (TEMPLATE / "project").glob("src/*/tests/test_*.py"))
    about = ["test_model.py", "test_network.py", "test_data.py", "test_readers.py", "test_task.py"]
    loop = {"test_ranks.py", "test_stop.py", "test_techniques.py", "test_train.py"}
    if EVERY:
        return sorted({*engine, *about} if (framework, model) in COVER else loop)
    if framework != FRAMEWORKS[0]:
        training = [
            name for name in engine if "from ..train import train" in _text(name) and name not in {*about, *loop}
        ]
        place = FRAMEWORKS.index(framework) - 1
        files = sorted(
            {*loop, "test_streams.py", *training[place :: len(FRAMEWORKS) - 1]}
        )  # each copies batches itself
        return [*files, *WITHOUT_TORCHRUN, *SHOWN_BY_THE_LOOP]
    if model == ENGINE_MODEL:
        return [*sorted({*engine, *about}), "--deselect", f"src/proj/tests/{EXPORT}[price-onnx]"]  # as of a label
    # ONNX is written from what torch.export returns, which each model shows; the first and the engine's are also that.
    parts = ["test_model.py", "test_network.py", *OVERFITS, "-k"]
    parts.append(f"not (exported and ({'torch' if model == MODELS[0] else 'onnx'} or text))")
    parts += ["test_data.py", "test_readers.py"] if first_with("data", model) else []
    parts += ["test_task.py"] if first_with("task", model) else []
    if model == MODELS[0]:
        parts.append(f"{ACTS}[channels_last]")
    return parts


def _text(name: str) -> str:
    return next((TEMPLATE / "project").glob(f"src/*/tests/{name}")).read_text()


@pytest.mark.slow
@pytest.mark.timeout(1500)  # some 350 tests in one
@pytest.mark.parametrize(("framework", "model"), PROJECTS[::-1])  # the longest first
def test_rendered_tests_pass(project: Project, framework: str, model: str) -> None:
    folder = project(framework, model)
    files = [
        f"src/proj/tests/{name}" if name.startswith("test_") else name for name in rendered_tests(framework, model)
    ]
    command = ["-m", "pytest", "-q", "-p", "no:cacheprovider", *files]
    cold = EVERY or (framework, model) == (FRAMEWORKS[0], ENGINE_MODEL)  # as a user starts them
    result = run_in(folder, sys.executable, *command) if cold else run_python(folder, *command, timeout_s=1400)
    assert result.returncode == 0, result.stdout
    assert re.search(r"\d+ passed", result.stdout)


TEXT = ["--train.steps=150", "--train.eval_every=150", "--data.val_fraction=0.005"]
SHORTER = {
    "resnet": (["--train.epochs=4"], 0.92),  # three seeds: 0.967 to 0.983
    "unet": (["--train.epochs=2"], 0.17),  # 0.22 to 0.29, untrained 0.01
    "vit": (["--train.epochs=6"], 0.8),  # 0.886 to 0.950
    "gpt": (TEXT, 3.5),  # 3.36 to 3.39; byte pairs have 3.6
    "lstm": (TEXT, 3.1),  # 2.94 to 2.96
    "vae": (["--train.epochs=3"], 4.3),  # 4.07 to 4.12; a Gaussian per pixel has 4.6
    "diffusion": (["--train.epochs=8"], 0.79),  # the best linear velocity has 0.79
    "bert": (["--train.epochs=1"], 0.7),  # 0.795; with a tenth of the learning rate 0.43
}
"""Shorter forms of recipes, and what they reach, but not with a tenth of the learning rate.

`make demo` trains resnet's recipe to its end.
"""


@pytest.mark.slow
@pytest.mark.parametrize(("framework", "model"), PAIRS if EVERY else [(FRAMEWORKS[0], model) for model in MODELS])
def test_recipe_reaches_expected_metric(project: Project, tmp_path: Path, framework: str, model: str) -> None:
    """`make test-all` trains every recipe to its end with the first framework: the others have equal losses."""
    folder = project(framework, model)
    bar = re.search(r"^# Expect: (\w+) (<=|<|>=) ([\d.]+)", (folder / "configs/default.yaml").read_text(), re.MULTILINE)
    assert bar is not None, "the recipe says what to expect"
    whole: tuple[list[str], float] = ([], float(bar[3]))
    options, expected = whole if EVERY and framework == FRAMEWORKS[0] else SHORTER.get(model, whole)
    fixed = ["--config=configs/default.yaml", f"--run.dir={tmp_path}", "--run.name=bar", "--run.device=cpu"]
    result = run_python(folder, "-m", "proj.train", *fixed, *options, timeout_s=1400)
    assert result.returncode == 0, result.stderr
    rows = [json.loads(line) for line in (tmp_path / "bar/metrics.jsonl").read_text().splitlines()]
    value = [row for row in rows if row["split"] == "val"][-1][bar[1]]
    print(f"{framework} {model}: {bar[1]} {value}")
    assert {"<": operator.lt, "<=": operator.le, ">=": operator.ge}[bar[2]](value, expected)


@pytest.mark.parametrize("framework", FRAMEWORKS if EVERY else FRAMEWORKS[:1])
def test_launchers_start_two_ranks(project: Project, tmp_path: Path, framework: str) -> None:
    """Two nodes train as two ranks of one node do, which `test_frameworks.py` compares for every framework."""
    folder = shutil.copytree(project(framework, ENGINE_MODEL, "nodes"), tmp_path / "proj")
    small = ["--config=configs/smoke.yaml", "--run.device=cpu", "--train.steps=2"]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    nodes = [
        subprocess.Popen(
            ["launch/multinode.sh", *small, "--run.name=nodes"],
            cwd=folder,
            env=_node(folder, rank, port),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in (0, 1)
    ]
    printed = [process.communicate(timeout=300)[0] for process in nodes]
    assert [process.returncode for process in nodes] == [0, 0], printed
    losses = logged_losses(folder / "runs/nodes")
    assert len(losses) >= 2
    local = run_in(folder, "launch/local.sh", *small, "--run.name=local", PROCESSES="2")
    assert local.returncode == 0, local.stderr
    assert logged_losses(folder / "runs/local") == losses


def logged_losses(run: Path) -> list[float]:
    return [json.loads(line)["loss"] for line in (run / "metrics.jsonl").read_text().splitlines()]


def _node(folder: Path, rank: int, port: int) -> dict[str, str]:
    place = {"NODE_RANK": str(rank), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "PROCESSES": "1"}
    return {**os.environ, **place, "PYTHONPATH": str(folder / "src"), "PYTHON": sys.executable, "OMP_NUM_THREADS": "1"}
