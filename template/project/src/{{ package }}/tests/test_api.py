"""Training from Python: the example in the README, hooks, and a process that is left as it was."""

import math
import os
import re
import runpy
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

from .. import config as options
from .. import train as module
from ..api import Config, Result, train
from ..errors import Stopped, UserError
from ..hooks import Hook
from .conftest import PARENT, PARSER, ROOT, SMALL, read_rows

CALLED: Any = module
"""The module train.py, which can be called."""


class Noted(Hook):
    """Notes when it is called."""

    def __init__(self) -> None:
        self.steps: list[int] = []
        self.rows: list[tuple[str, int]] = []
        self.ended: list[Path] = []
        self.signals = 0
        """Interrupts in the second step."""

    def before_step(self, step: int) -> None:
        self.steps.append(step)
        if step == 1:
            for _ in range(self.signals):
                os.kill(os.getpid(), signal.SIGINT)

    def on_validation(self, results: dict[str, float], model: nn.Module) -> None:
        assert not model.training
        results["mine"] = float(len(self.steps))

    def after_row(self, split: str, step: int, row: Mapping[str, float]) -> None:
        assert ("mine" in row) == (split == "val")
        self.rows.append((split, step))

    def finish(self, folder: Path, is_main: bool) -> None:
        self.ended.append(folder)


def small(tmp_path: Path, *others: str) -> Config:
    """Return a config for a run of four steps."""
    given = [*SMALL, f"--run.dir={tmp_path}", "--train.steps=4", "--log.every=1"]
    return options.read(PARSER, [*given, "--train.eval_every=2", *others])


def state_of_process() -> list[Any]:
    """Return what a run could leave changed."""
    found: list[Any] = [{number: signal.getsignal(number) for number in signal.valid_signals()}, dict(os.environ)]
    found += [torch.get_rng_state().tolist(), torch.backends.cudnn.benchmark, torch.is_anomaly_enabled()]
    return [
        *found,
        torch.are_deterministic_algorithms_enabled(),
        torch.distributed.is_initialized(),
        warnings.filters[:],
    ]


@pytest.mark.fast
@pytest.mark.usefixtures("short_validation")
def test_example_of_the_readme_runs_twice_in_one_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    examples = [block for block in blocks if "import Config, train" in block]
    if not examples:
        pytest.skip("the README has no example")
    (tmp_path / "runs").mkdir()
    for entry in [*ROOT.iterdir(), *ROOT.glob("runs/*")]:  # the config may name files and runs of the project
        if entry.name != "runs":
            (tmp_path / entry.relative_to(ROOT)).symlink_to(entry)
    (tmp_path / "example.py").write_text(examples[0])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["notebook", "--unknown"])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    before = state_of_process()
    found: list[Result] = []
    for _ in range(2):
        found.append(runpy.run_path("example.py")["result"])
    assert state_of_process() == before
    assert found[0].metrics == found[1].metrics
    assert found[0].folder != found[1].folder
    assert found[0].best is not None
    assert found[0].best.parent.parent == found[0].folder
    assert str(found[1].metrics["loss"]) in capsys.readouterr().out


@pytest.mark.usefixtures("short_validation")
def test_hooks_see_rows_and_validations_and_add_metrics(tmp_path: Path) -> None:
    noted = Noted()
    result = train(small(tmp_path, "--run.name=a", "--train.monitor=mine", "--train.monitor_mode=max"), [noted])
    assert noted.steps == [0, 1, 2, 3]
    splits = [("train", 1), ("train", 2), ("val", 2), ("train", 3), ("train", 4), ("val", 4)]
    assert noted.rows == splits
    assert noted.ended == [tmp_path / "a"]
    assert result.metrics["mine"] == 4
    assert [row["mine"] for row in read_rows(tmp_path / "a", "val")] == [2, 4]


@pytest.mark.usefixtures("short_validation")
def test_hooks_must_add_numbers(tmp_path: Path) -> None:
    class Adds(Hook):
        def __init__(self, name: str, value: Any) -> None:
            self.name, self.value = name, value

        def on_metrics(self, row: dict[str, float]) -> bool:
            row[self.name] = self.value
            return False

    one: Any = Adds("mine", torch.ones(()))  # one hook may be given without a list
    with pytest.raises(UserError, match="the metric mine is a Tensor: a hook must add numbers"):
        train(small(tmp_path), one)
    with pytest.raises(UserError, match="a metric is named step, as a part of each row"):
        train(small(tmp_path), [Adds("step", 3.0)])

    class AddsText(Hook):
        def on_validation(self, results: dict[str, Any], model: nn.Module) -> None:
            results["text"] = "a"

    with pytest.raises(UserError, match="the metric text is a str: a hook must add numbers"):
        train(small(tmp_path), [AddsText()])


@pytest.mark.usefixtures("short_validation")
def test_a_monitored_metric_that_is_never_finite_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    class Adds(Hook):
        def on_validation(self, results: dict[str, float], model: nn.Module) -> None:
            results["mine"] = math.nan

    train(small(tmp_path, "--train.monitor=mine", "--train.monitor_mode=max"), [Adds()])
    assert re.search(r"best +none, as mine was never finite", capsys.readouterr().out)


@pytest.mark.usefixtures("short_validation")
def test_a_hook_that_ends_a_run_keeps_what_was_trained(tmp_path: Path) -> None:
    class Ends(Hook):
        rows = 0

        def on_metrics(self, row: dict[str, float]) -> bool:
            self.rows += 1
            return self.rows == 3

    result = train(small(tmp_path, "--run.name=a"), [Ends()])
    assert result.best is not None
    assert read_rows(tmp_path / "a", "val")[-1]["step"] == 3
    assert [path.name for path in sorted((tmp_path / "a/checkpoints").glob("step-*"))][-1] == "step-00000003"


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
@pytest.mark.usefixtures("short_validation")
def test_loader_workers_end_with_their_run(tmp_path: Path) -> None:
    """Within a `no_grad`, in which a notebook may be, as well."""

    def children() -> set[str]:
        return {*Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()}

    before = children()
    with torch.no_grad():
        train(small(tmp_path, "--loader.workers=1"))
    assert children() <= before


@pytest.mark.usefixtures("short_validation")
def test_another_thread_must_not_train_at_the_same_time(tmp_path: Path) -> None:
    class Trains(Hook):
        def __init__(self) -> None:
            self.errors: list[str] = []

        def before_step(self, step: int) -> None:
            if step == 1:
                other = threading.Thread(target=self.other)
                other.start()
                other.join()

        def other(self) -> None:
            try:
                train(small(tmp_path, "--run.name=b"))
            except UserError as error:
                self.errors.append(str(error).partition(":")[0])

    hook = Trains()
    train(small(tmp_path, "--run.name=a"), [hook])
    assert hook.errors == ["another thread of this process trains"]
    with torch.inference_mode(), pytest.raises(UserError, match="inference_mode"):
        train(small(tmp_path, "--run.name=c"))


@pytest.mark.usefixtures("short_validation")
def test_interrupted_run_is_continued_and_a_second_interrupt_does_not_end_the_process(tmp_path: Path) -> None:
    whole = train(small(tmp_path, "--run.name=whole"))
    handlers = state_of_process()[0]
    noted = Noted()
    noted.signals = 1
    with pytest.raises(Stopped, match="stopped at step 2"):
        train(small(tmp_path, "--run.name=a"), [noted])
    noted.signals = 2
    with pytest.raises(KeyboardInterrupt):
        train(small(tmp_path, "--run.name=b"), [noted])
    assert state_of_process()[0] == handlers
    assert CALLED(small(tmp_path, "--run.name=a")).metrics == whole.metrics


@pytest.mark.fast
def test_import_is_cheap_and_train_is_the_module_as_well() -> None:
    package = sys.modules[PARENT]
    assert isinstance(CALLED, ModuleType)
    assert package.Config is Config
    assert package.Hook is Hook
    code = f"import sys, {PARENT}; assert 'torch' not in sys.modules; assert not hasattr({PARENT}, 'nothing')"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.fast
def test_wrong_arguments_are_one_line(tmp_path: Path) -> None:
    anything: Any = {"steps": 3}
    cases: dict[Any, str] = {
        lambda: Config(train={"stepz": 3}): "no option --train.stepz; did you mean train.steps",  # type: ignore[arg-type]
        lambda: Config(train=3): "train of the config is 3: give a dict",  # type: ignore[arg-type]
        lambda: Config.load(train=3): "train of the config is 3: give a dict",  # type: ignore[arg-type]
        lambda: Config.load(tmp_path / "a.yaml"): "cannot read the config",
        lambda: train(anything): "train takes a Config, and not",
        lambda: train(Config(), [anything]): "hooks has {'steps': 3}: give objects of a class",
        lambda: train(Config(run=options.RunConfig(processes=2, device="cpu"))): "run.processes is 2: train",
    }
    for make, why in cases.items():
        with pytest.raises(UserError, match=why):
            make()
    given: dict[str, Any] = {"steps": 3, "monitor_mode": None}
    assert Config(train=given).train.steps == Config.load(train=given).train.steps == 3  # type: ignore[arg-type]
