"""Each component, and each pair of components, trains and resumes; how fsdp and ema act."""

import json
import re
from collections.abc import Iterator
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from covering import covering
from engine import MakePackage, Package, equal, rows, saved
from matrix import CLASSES, COMPONENTS, EVERY, MODULES, module_of
from program import PROGRAMS, once
from warm import run_python

COVER = covering(COMPONENTS, CLASSES)
REFUSED = {
    "streams": "needs an IterableDataset",
    "fp8": "needs a GPU with fp8",
    "fsdp": "needs several ranks",
}
"""Components that this machine, or one process, cannot have, each with a part of its message."""
SIX = ["--train.steps=6", "--train.eval_every=3"]


def enabled(names: list[str]) -> list[str]:
    return [f"--{module_of(name)}.enabled=true" for name in names]


def test_every_possible_state_of_each_pair_is_covered() -> None:
    for one, other in combinations(CLASSES, 2):
        states = {(one in chosen, other in chosen) for chosen in COVER}
        assert states == {(0, 0), (0, 1), (1, 0), (1, 1)}
    table: dict[str, dict[str, Any]] = {
        "a": {},
        "b": {},
        "c": {"requires": ["a"]},
        "d": {},
    }
    found = covering(table, list(table))
    assert all("a" in chosen for chosen in found if "c" in chosen)
    assert {("a" in chosen, "c" in chosen) for chosen in found} == {(0, 0), (1, 0), (1, 1)}


def test_components_that_are_off_change_nothing(package: MakePackage, tmp_path: Path) -> None:
    package("mlp").train_here(tmp_path / "without", *SIX)
    package("mlp", *MODULES).train_here(tmp_path / "off", *SIX)
    assert rows(tmp_path / "off") == rows(tmp_path / "without")
    assert equal(saved(tmp_path / "off"), saved(tmp_path / "without"))


@pytest.fixture(scope="session")
def killed(package: MakePackage, shared_folder: Path) -> Path:
    """A folder with a run of each component, which was killed in its sixth step.

    Once for all workers.
    """
    p = package("mlp", *MODULES)
    folder = shared_folder / "killed"
    with once(folder) as first:
        if first:
            runs = []
            for name in CLASSES:
                if name not in REFUSED:
                    runs.append(
                        p.arguments(
                            folder / name,
                            *SIX,
                            *enabled([name]),
                        )
                    )
            program = [
                str(PROGRAMS / "kill_at_step.py"),
                "5",
                p.name,
                json.dumps(runs),
            ]
            run_python(p.root, *program)
    return folder


@pytest.fixture
def traced() -> Iterator[None]:
    """Trace as torch.compile does, and run the graphs in eager mode.

    To generate code takes most of the time.
    """
    compiled = partial(torch.compile, backend="eager")
    with mock.patch.object(
        torch,
        "compile",
        lambda call, **_: compiled(call, dynamic=False),
    ):
        yield


@pytest.mark.slow
@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize("component", CLASSES)
def test_component_trains_and_survives_a_kill(
    package: MakePackage, tmp_path: Path, killed: Path, component: str
) -> None:
    p = package("mlp", *MODULES)
    options = [*SIX, *enabled([component])]
    if component in REFUSED:
        with pytest.raises(
            p.errors.UserError, match=rf"^{module_of(component)}\.enabled .*{REFUSED[component]}"
        ):
            p.train_here(tmp_path / "whole", *options)
        return
    p.train_here(tmp_path / "whole", *options)
    assert rows(tmp_path / "whole")[-1]["step"] == 6
    if component != "async-checkpoint":  # which may still write
        assert saved(killed / component)["step"] == 3
    p.train_here(killed / component, *options)
    assert equal(saved(killed / component), saved(tmp_path / "whole"))
    assert rows(killed / component) == rows(tmp_path / "whole")


def train_with(
    p: Package,
    folder: Path,
    names: list[str],
) -> None:
    """Train with components; leave off one of two that exclude each other."""
    while True:
        try:
            p.train_here(folder, *SIX, *enabled(names))
            return
        except p.errors.UserError as error:
            found = [
                name
                for name in names
                if re.search(rf"\b{module_of(name)}\b|\b{p.class_of(name)}\b", str(error))
            ]
            if len(found) != 2:
                raise
            names.remove(found[-1])


@pytest.mark.test_all
@pytest.mark.slow
@pytest.mark.usefixtures("tmp_path" if EVERY else "traced")
@pytest.mark.parametrize(
    "chosen",
    COVER,
    ids=lambda chosen: str(len(chosen)),
)
def test_pairs_of_components_train_together(
    package: MakePackage, tmp_path: Path, chosen: list[str]
) -> None:
    """Two that exclude each other are refused in one line that names both.

    One that is off is as one that is absent.
    """
    train_with(
        package("mlp", *MODULES),
        tmp_path,
        [name for name in chosen if name not in REFUSED],
    )
    found = rows(tmp_path, "train")
    assert "lr-range-test" in chosen or found[-1]["loss"] < found[0]["loss"]


@pytest.mark.slow
def test_sharded_run_equals_ddp_and_its_weights_are_whole(
    tiny: MakePackage, tmp_path: Path
) -> None:
    p = tiny("ema", "fsdp")
    options = ["--train.steps=6", "--train.eval_every=3", "--ema.enabled=true"]
    options += ["--train.batch_size=4", "--train.gradient_accumulation_steps=2"]
    p.finish(tmp_path / "ddp", *options, ranks=2)
    p.finish(tmp_path / "fsdp", *options, "--fsdp.enabled=true", ranks=2)
    for mine, other in zip(
        rows(tmp_path / "fsdp"),
        rows(tmp_path / "ddp"),
        strict=True,
    ):
        assert mine["loss"] == pytest.approx(other["loss"], rel=1e-4)
    weights = [p.checkpoint.load_weights(tmp_path / name / "a") for name in ("fsdp", "ddp")]
    assert weights[0].keys() == weights[1].keys()
    for name, weight in weights[0].items():
        torch.testing.assert_close(
            weight,
            weights[1][name],
            rtol=1e-3,
            atol=2e-4,
        )
    best = p.checkpoint.best(tmp_path / "fsdp/a")
    assert p.checkpoint.spec_of(best) == {"inputs": 4}
    done = p.finish(
        tmp_path / "ddp",
        *options,
        "--fsdp.enabled=true",
        ranks=2,
        expect=1,
    )
    assert "was saved without fsdp" in done.stderr
    changed = ["--fsdp.enabled=true", "--model.kind=batch_norm", "--run.allow_changes=true"]
    done = p.finish(
        tmp_path / "fsdp",
        *options,
        *changed,
        ranks=2,
        expect=1,
    )
    assert "step-00000006 does not fit this model (" in done.stderr


def test_average_follows_its_formula_and_is_validated(tiny: MakePackage, tmp_path: Path) -> None:
    p = tiny("ema")
    options = ["--train.steps=6", "--train.eval_every=1", "--run.keep=9", "--ema.decay=0.5"]
    p.train_here(tmp_path / "averaged", *options, "--ema.enabled=true")
    p.train_here(tmp_path / "plain", *options)
    assert equal(saved(tmp_path / "averaged")["model"], saved(tmp_path / "plain")["model"])
    torch.manual_seed(0)
    start = p.model.build(p.model.ModelConfig(), p.data.Spec())
    average = {name: weight.detach().clone() for name, weight in start.named_parameters()}
    for step in range(1, 7):
        file = tmp_path / f"averaged/a/checkpoints/step-{step:08d}/state.pt"
        state = torch.load(file, weights_only=True)
        decay = min(0.5, (1 + step) / (10 + step))
        for name, value in average.items():
            value.lerp_(state["model"][name], 1 - decay)
            torch.testing.assert_close(state["components"]["ema"]["eval_weights"][name], value)
    assert rows(tmp_path / "averaged", "val") != rows(tmp_path / "plain", "val")


def test_average_can_be_added_to_a_run_and_removed_from_it(
    tiny: MakePackage, tmp_path: Path
) -> None:
    p = tiny("ema")
    for number, enabled in enumerate(["false", "true", "false"], 1):
        more = [f"--train.steps={3 * number}", "--run.allow_changes=true"]
        p.train_here(tmp_path, *more, f"--ema.enabled={enabled}")
    assert saved(tmp_path)["step"] == 9
