"""Rendered projects pass their own tests, train to the expected metric, and start on two ranks."""

import json
import operator
import re
import shutil
import socket
import sys
import time
from pathlib import Path

import pytest
from covering import covering
from matrix import (
    COMPONENTS,
    ENGINE_MODEL,
    EVERY,
    FRAMEWORKS,
    MODELS,
    MODULES,
    ONE_PER_KIND,
    PAIRS,
    TEMPLATE,
    module_of,
    tiers,
)
from program import AT_EXIT, Fastproj, Project, finish, render_once, run_in, started
from warm import FORKED, run_python

IN_ONE_PROCESS = ["-k", "not killed_run and not two_ranks"]
"""Leaves out tests that start processes, which are the same in all projects of a framework."""
CORE = ["model", "train"]
TRACKERS = [name for name in MODULES if "tracker" in COMPONENTS[name].get("requires", [])]
TESTED = [name for name in MODULES if EVERY or name not in TRACKERS[1:]]
"""Components whose own tests run: trackers share their code, and some take long to import."""
WITH_RANKS = [
    name
    for name in TESTED
    if "run_group" in (TEMPLATE / f"components/{name}/test_component.py").read_text()
]
"""Those whose tests start ranks; in one process, they import torch once for all of them."""
OTHERS = [name for name in TESTED if name not in WITH_RANKS]
PARTS = ({"core": CORE} if EVERY else {}) | {
    "ranks": [*map(module_of, WITH_RANKS)],
    **{str(part): [*map(module_of, OTHERS[part::3])] for part in range(3)},
}
"""The tests of a project with all components, in parts that take about equally long.

Those of the core are not repeated in `make test`: components that are off change nothing, as a test
of the engine says.
"""


def particular(model: str) -> list[str]:
    """Return the tests of a model and its data, and of one also those of the loop."""
    names = [model, "data_files", "model", *(["train"] if model == "gpt" else [])]
    return [*(f"src/proj/tests/test_{name}.py" for name in names), *IN_ONE_PROCESS]


def assert_passes(folder: Path, *arguments: str, cold: bool = False) -> None:
    """Run pytest in a project, in a process of its own or in a fork that has imported torch."""
    command = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "--durations=5", *arguments]
    if cold:
        result = run_in(folder, sys.executable, *command)
    else:
        search = str(folder / "src")  # for processes that the tests start
        command += FORKED
        result = run_python(folder, *command, ranks=0, limit_s=1400, PYTHONPATH=search)
    assert re.search(r"\d+ passed", result.stdout)
    print(result.stdout)


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("model", sorted(MODELS, key=lambda model: model != ENGINE_MODEL))
def test_rendered_tests_pass(project: Project, model: str) -> None:
    whole = EVERY or model == ENGINE_MODEL
    assert_passes(
        project(FRAMEWORKS[0], model),
        *([] if whole else particular(model)),
        cold=model == ENGINE_MODEL,
    )


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("model", MODELS if EVERY else [ENGINE_MODEL])
@pytest.mark.parametrize("framework", FRAMEWORKS[1:])
def test_rendered_tests_of_other_frameworks_pass(
    project: Project, framework: str, model: str
) -> None:
    """A rank with Lightning takes seconds to start.

    `tests/engine/` has a kill, and two ranks, in forks.
    """
    fewer = ["-k", "not killed_run_of_two_ranks"] if framework == "lightning" and not EVERY else []
    cold = EVERY and model == ENGINE_MODEL
    assert_passes(project(framework, model), *fewer, cold=cold)


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("model", MODELS if EVERY else [ENGINE_MODEL])
@pytest.mark.parametrize("part", PARTS)
def test_rendered_tests_pass_with_all_components(
    fastproj: Fastproj, shared_folder: Path, model: str, part: str
) -> None:
    place = shared_folder / f"all-components-{model}"
    folder = render_once(fastproj, place, "proj", *with_components(model, MODULES))
    assert_passes(folder, *(f"src/proj/tests/test_{name}.py" for name in PARTS[part]))


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.test_all
@pytest.mark.parametrize(
    "chosen", covering(COMPONENTS, MODULES) if EVERY else [MODULES], ids=lambda it: str(len(it))
)
def test_rendered_tests_pass_with_pairs_of_components(
    fastproj: Fastproj, tmp_path: Path, chosen: list[str]
) -> None:
    place = ["--output", str(tmp_path), "--yes"]
    fastproj("new", "proj", *with_components(ENGINE_MODEL, chosen), *place)
    assert_passes(
        tmp_path / "proj", *(f"src/proj/tests/test_{module_of(name)}.py" for name in chosen)
    )


def with_components(model: str, components: list[str]) -> list[str]:
    """Return the options of `fastproj new`."""
    chosen = ",".join(components) or "none"
    return ["--model", model, "--components", chosen, "--no-git", "--gpus", "0"]


TEXT = ["--train.steps=150", "--train.eval_every=150", "--data.val_fraction=0.005"]
SHORTER = {
    "resnet": (["--train.epochs=4"], 0.92),
    "unet": (["--train.epochs=2"], 0.17),
    "vit": (["--train.epochs=6"], 0.8),
    "gpt": (TEXT, 3.5),
    "lstm": (TEXT, 3.1),
    "vae": (["--train.epochs=3"], 4.3),
    "diffusion": (["--train.epochs=4"], 0.95),
    "bert": (["--train.steps=120", "--train.eval_every=120", "--train.batch_size=16"], 0.5),
}
"""Shorter forms of recipes, and what they reach, but not with a tenth of the learning rate.

`make demo` trains resnet's recipe to its end.
"""

OF_LIGHTNING = {
    "train.epochs": "trainer.max_epochs",
    "train.steps": "trainer.max_steps",
    "train.eval_every": "trainer.val_check_interval",
    "train.batch_size": "data.batch_size",
}

LONGEST = ("gpt", "lstm", "unet")
USUAL = [(FRAMEWORKS[0], model) for model in ONE_PER_KIND if model not in LONGEST]
RECIPES = tiers(USUAL, [pair for pair in PAIRS if pair not in USUAL])


@pytest.mark.slow
@pytest.mark.parametrize(("framework", "model"), RECIPES)
def test_recipe_reaches_expected_metric(
    project: Project, tmp_path: Path, framework: str, model: str
) -> None:
    """`make test-all` trains every recipe to its end with the first framework.

    The others have equal losses.
    """
    folder = project(framework, model)
    bar = re.search(
        r"^# Expect: (\w+) (<=|<|>=) ([\d.]+)",
        (folder / "configs/default.yaml").read_text(),
        re.MULTILINE,
    )
    assert bar is not None, "the recipe says what to expect"
    whole: tuple[list[str], float] = ([], float(bar[3]))
    options, expected = whole if EVERY and framework == FRAMEWORKS[0] else SHORTER.get(model, whole)
    fixed = [f"--run.dir={tmp_path}", "--run.name=bar", "--run.device=cpu"]
    command = []
    if framework == "lightning":
        command = ["fit"]
        logger = {"save_dir": tmp_path, "version": "bar"}
        fixed = [f"--trainer.logger.{name}={value}" for name, value in logger.items()]
        fixed.append("--trainer.accelerator=cpu")
        for name, other in OF_LIGHTNING.items():
            options = [option.replace(name, other) for option in options]
    recipe = "--config=configs/default.yaml"
    run_python(folder, "-m", "proj.train", *command, recipe, *fixed, *options, limit_s=1400)
    rows = [json.loads(line) for line in (tmp_path / "bar/metrics.jsonl").read_text().splitlines()]
    value = [row for row in rows if row["split"] == "val"][-1][bar[1]]
    print(f"{framework} {model}: {bar[1]} {value}")
    assert {"<": operator.lt, "<=": operator.le, ">=": operator.ge}[bar[2]](value, expected)
    if framework != "lightning":  # whose command is `train validate`
        done = run_python(folder, "-m", "proj.evaluate", str(tmp_path / "bar"), "--device=cpu")
        assert bar[1] in json.loads(done.stdout)


@pytest.mark.slow
@pytest.mark.parametrize("framework", FRAMEWORKS if EVERY else FRAMEWORKS[:1])
def test_launchers_start_two_ranks(project: Project, tmp_path: Path, framework: str) -> None:
    """Two nodes train as two ranks of one node do."""
    folder = shutil.copytree(project(framework, ENGINE_MODEL, "nodes"), tmp_path / "proj")
    (folder / "src/sitecustomize.py").write_text(AT_EXIT)
    small = ["--config=configs/smoke.yaml", "--run.device=cpu", "--train.steps=2"]
    small.append("--speed.precision=fp32")  # only `accelerate launch` reads its own file
    name = "--run.name"
    if framework == "lightning":
        small = ["--config=configs/smoke.yaml", "--trainer.accelerator=cpu"]
        name = "--trainer.logger.version"
    # smoke.yaml is for one node
    across = ["--trainer.num_nodes=2"] if framework == "lightning" else []
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    node = ["launch/multinode.sh", *small, *across]
    place = {
        "RUN_NAME": "nodes",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "PROCESSES": "1",
    }
    with started(folder, *node, PYTHONPATH="", **place) as first:
        while first.poll() is None and not answers(
            port
        ):  # the second one would take itself for the first
            time.sleep(0.1)
        with started(folder, *node, PYTHONPATH="", **place) as second:
            printed = [finish(first), finish(second)]
    assert [first.returncode, second.returncode] == [0, 0], printed
    losses = logged_losses(folder / "runs/nodes")
    assert len(losses) >= 1
    if EVERY:
        run_in(folder, "launch/local.sh", *small, f"{name}=local", PROCESSES="2", PYTHONPATH="")
    else:  # what local.sh starts is in `tests/generator/test_launch_scripts.py`
        same = ["--config=configs/default.yaml", *small, f"{name}=local"]
        run_python(folder, "-m", "proj.train", *same, ranks=2)
    assert logged_losses(folder / "runs/local") == losses


def logged_losses(run: Path) -> list[float]:
    return [json.loads(line)["loss"] for line in (run / "metrics.jsonl").read_text().splitlines()]


def answers(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0
