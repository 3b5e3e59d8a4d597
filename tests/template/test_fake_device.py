"""Each model trains on an accelerator that has no values.

Nothing stays on the host, and the host reads nothing.
"""

import json
from pathlib import Path

import pytest
from matrix import (
    CLASSES,
    COMPONENTS,
    ENGINE_MODEL,
    EVERY,
    FRAMEWORKS,
    MODELS,
    ONE_PER_KIND,
    module_of,
    tiers,
)
from program import PROGRAMS, Project
from warm import run_python

FIXED = ["--config=configs/default.yaml", "--speed.precision=fp32", "--speed.compile=off"]
FIXED += ["--train.steps=2", "--train.eval_every=2", "--log.every=1", "--loader.num_workers=0"]
VARIANTS: list[list[str]] = [
    [],
    [
        "--train.gradient_accumulation_steps=2",
    ],
]
"""Options of the engine, beside the defaults."""
NEED_MORE = {
    "fp8": "autocast",
    "fsdp": "several ranks",
    "metrics": "values, in a validation",
    "regional-compile": "a device that torch compiles for",
}
"""Components that cannot act in one process on a device without values, with what they need."""


OTHER_WAYS = {
    **{f"cache {where}": [f"--cache.where={where}"] for where in ("device", "memory")},
    "streams": ["--loader.pin_memory=false"],
    **{f"optimizers {name}": [f"--optimizers.name={name}"] for name in ("muon", "lamb", "lars")},
    "activation-checkpointing ops": ["--activation_checkpointing.mode=ops"],
}
"""What a component does with other options."""


def _run(folder: Path, runs: Path, variants: list[list[str]], fault: str = "") -> str:
    every = [
        [*FIXED, f"--run.dir={runs}", f"--run.name={number}", *more]
        for number, more in enumerate(variants)
    ]
    result = run_python(
        folder,
        str(PROGRAMS / "train_on_fake_device.py"),
        json.dumps(every),
        *[fault] * bool(fault),
        status=None,
    )
    assert (result.returncode == 0) == (not fault), result.stdout + result.stderr
    return result.stdout + result.stderr


@pytest.mark.parametrize(
    "model", tiers(ONE_PER_KIND, [it for it in MODELS if it not in ONE_PER_KIND])
)
def test_model_trains_on_a_fake_device(project: Project, tmp_path: Path, model: str) -> None:
    variants = (
        VARIANTS if model in (ENGINE_MODEL, "unet") else VARIANTS[:1]
    )  # unet counts on the device
    printed = _run(project(FRAMEWORKS[0], model), tmp_path, variants)
    assert printed.count("done after 2 steps") == len(variants)


@pytest.mark.slow
def test_components_act_on_a_fake_device(project: Project, tmp_path: Path) -> None:
    """Those that one process can have; trackers read what the first of them reads."""
    trackers = [name for name in CLASSES if "tracker" in COMPONENTS[name].get("requires", [])]
    left_out = [*NEED_MORE, *([] if EVERY else trackers[1:])]
    names = dict.fromkeys([*[name for name in CLASSES if name not in left_out], *OTHER_WAYS])
    variants = [
        [f"--{module_of(name.split()[0])}.enabled=true", *OTHER_WAYS.get(name, [])]
        for name in names
    ]
    assert _run(project(FRAMEWORKS[0], ENGINE_MODEL, "nodes"), tmp_path, variants)


@pytest.mark.parametrize(
    ("fault", "error"),
    tiers(
        [("item", "DataDependentOutputException")],
        [("host", "Expected all tensors to be on the same device")],
    ),
)
def test_planted_faults_are_found(
    project: Project,
    tmp_path: Path,
    fault: str,
    error: str,
) -> None:
    assert error in _run(project(FRAMEWORKS[0], ENGINE_MODEL), tmp_path, VARIANTS[:1], fault)
