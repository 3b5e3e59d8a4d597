"""The debugging tools find what they are for, and the steady state has no host-device synchronization."""

import functools
import json
import pstats
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from .. import data, model, speed, techniques
from ..config import Config
from ..distributed import World
from ..errors import UserError
from ..grad_scaler import CountingScaler
from ..speed import Precision
from ..techniques import debug
from ..train import train
from .conftest import HAS_BLOCKS, SMALL, main, unsupported

pytestmark = pytest.mark.usefixtures("short_validation")


class Broken(nn.Module):
    """Three layers; the middle one applies the function of the test."""

    def __init__(self, break_it: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 4)
        self.middle = Middle(break_it)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.last(self.middle(self.first(x)))
        return y


class Middle(nn.Module):
    """Applies a function."""

    def __init__(self, apply: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.apply_it = apply

    def forward(self, x: Tensor) -> Tensor:
        return self.apply_it(x)


def test_debug_nan_names_the_module_of_a_nan_output() -> None:
    net = Broken(lambda x: x / (x - x))
    debug.find_nan(net)
    with pytest.raises(UserError, match=r"the output of middle \(Middle\) is (NaN|infinite)"):
        net(torch.ones(2, 4))


def test_debug_nan_names_the_module_of_a_nan_gradient() -> None:
    net = Broken(lambda x: (x - x.detach()).sqrt() + x)  # the square root's slope at 0 is infinite
    debug.find_nan(net)
    with pytest.raises(UserError, match="the gradient at the output of first is (NaN|infinite)"):
        net(torch.ones(2, 4)).sum().backward()


def test_debug_nan_reports_a_diverging_run(tmp_path: Path) -> None:
    diverging = ["--optim.lr=1e30", "--optim.clip=null", "--optim.div_factor=1", "--debug.nan=true"]
    with pytest.raises(SystemExit, match=r"is (NaN|infinite): that is the first such value \(debug.nan\)"):
        main([*SMALL, f"--run.dir={tmp_path}", "--run.name=a", *diverging])


class WrongBackward(torch.autograd.Function):
    """Doubles, with the gradient of a triple."""

    @staticmethod
    def forward(context: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Tensor:
        return gradient * 3


def test_gradcheck_detects_a_wrong_backward() -> None:
    class Net(Broken):
        def forward(self, x: Tensor) -> Any:
            return super().forward(x).square().mean(), {}

    torch.manual_seed(0)
    debug.gradcheck(Net(lambda x: x * 2), (torch.randn(4, 4),))
    with pytest.raises(UserError, match="the gradient of .* is wrong"):
        debug.gradcheck(Net(WrongBackward.apply), (torch.randn(4, 4),))


def test_profilers_write_a_trace_a_table_stacks_and_functions(
    config: Callable[..., Config], world: World, tmp_path: Path
) -> None:
    short = ["--train.steps=6", "--debug.profile_start=4", "--debug.profile_steps=2"]
    train(config("--run.name=a", *short, "--debug.profile=true"), world)
    trace = json.loads((tmp_path / "a/profile/trace.json").read_text())
    names = [event["name"] for event in trace["traceEvents"]]
    assert {name for name in names if name.startswith("ProfilerStep#")} == {"ProfilerStep#4", "ProfilerStep#5"}
    assert "Self CPU" in (tmp_path / "a/profile/table.txt").read_text()
    assert "_call_impl" in (tmp_path / "a/profile/stacks.txt").read_text()
    train(config("--run.name=b", *short, "--debug.profile=advanced"), world)
    assert "Ordered by: internal time" in (tmp_path / "b/profile/functions.txt").read_text()
    called = pstats.Stats(str(tmp_path / "b/profile/functions.prof")).stats  # type: ignore[attr-defined]
    assert any(file.endswith("phase_times.py") for file, *_ in called)
    with pytest.raises(UserError, match="debug.profile is nvtx: its ranges need CUDA"):
        train(config("--run.name=c", *short, "--debug.profile=nvtx"), world)


def test_deterministic_refuses_nondeterministic_kernels(
    config: Callable[..., Config], world: World, tmp_path: Path
) -> None:
    net = model.build(config().model, data.load(config().data).spec)
    batch = (torch.zeros(1), torch.zeros(1))
    tools = debug.DebugTools(config("--debug.deterministic=true"), world, net, lambda: batch)
    with tools.running(net, tmp_path), pytest.raises(RuntimeError, match="does not have a deterministic"):
        torch.zeros(3).put_(torch.tensor([0, 0]), torch.tensor([1.0, 2.0]))
    assert not torch.are_deterministic_algorithms_enabled()


def test_debug_tools_restore_the_global_state(config: Callable[..., Config], world: World) -> None:
    train(config("--run.name=a", "--debug.anomaly=true", "--debug.deterministic=true"), world)
    assert not torch.is_anomaly_enabled()
    assert not torch.are_deterministic_algorithms_enabled()


QUIET = ["--run.name=a", "--train.steps=8", "--log.every=100", "--loader.workers=0"]


@pytest.mark.parametrize(
    "options",
    [
        [],
        ["--train.accumulate=2"],
        ["--train.ema=0.9"],
        ["--speed.precision=bf16"],
        ["--speed.activation_checkpointing=blocks"],
        ["--data.cache=device"],
        ["--optim.name=sgd"],
        ["--optim.schedule=cosine"],
    ],
    ids=" ".join,
)
def test_steady_state_has_no_synchronization(
    config: Callable[..., Config], world: World, steady_state: list[int], options: list[str]
) -> None:
    if "blocks" in " ".join(options) and not HAS_BLOCKS:
        pytest.skip("this model has no `blocks`")
    train(config(*QUIET, *options), world)
    assert len(steady_state) == 8


def test_fp16_does_not_read_whether_a_step_was_skipped(
    config: Callable[..., Config], world: World, steady_state: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The scaler reads a copy of its count on the host; without that, the step has no synchronization."""
    monkeypatch.setattr(CountingScaler, "skipped_steps", lambda self: 0)
    options = [*QUIET, "--speed.precision=fp16"]
    if unsupported(options):
        with pytest.raises(UserError, match=re.escape(unsupported(options))):
            train(config(*options), world)
        return
    train(config(*options), world)
    assert len(steady_state) == 8


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--speed.precision=fp16", "--optim.fused=false"], "fp16 without a fused optimizer synchronizes"),
        (["--speed.precision=fp16", "--train.ema=0.9"], "fp16 with train.ema synchronizes"),
        (["--dist.sync_batchnorm=true"], "dist.sync_batchnorm synchronizes"),
        (["--debug.nan=true"], "debug.nan synchronizes"),
        (["--train.on_nonfinite=skip"], "train.on_nonfinite=skip synchronizes"),
    ],
)
def test_debug_sync_refuses_options_that_synchronize(
    config: Callable[..., Config], options: list[str], message: str
) -> None:
    cfg = config("--debug.sync=error", *options)
    place = World(0, 2, torch.device("cuda", 0))
    with pytest.raises(UserError, match=f"debug.sync is error: {message} in every step; use warn or off"):
        techniques.check(cfg, 1, Precision("fp16" if "fp16" in str(options) else "fp32", place.device), place)
    techniques.check(config("--debug.sync=error", "--speed.precision=fp16"), 1, Precision("fp16", place.device), place)


@pytest.mark.parametrize("what", ["item", "cpu", "to", "numpy", "print", "if"])
def test_synchronization_in_the_loop_is_detected(
    config: Callable[..., Config], world: World, steady_state: list[int], monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    prepare = data.Prepare.forward

    @functools.wraps(prepare)
    def synchronizing(self: Any, batch: Any, *others: Any) -> Any:
        value = batch[0].float().mean()
        if what == "item":
            value.item()
        elif what == "cpu":
            value.cpu()
        elif what == "to":
            value.to("cpu")
        elif what == "numpy":
            value.numpy()
        elif what == "print":
            print(value)
        elif value > 1e9:
            raise AssertionError
        return prepare(self, batch, *others)

    monkeypatch.setattr(data.Prepare, "forward", synchronizing)
    with pytest.raises(AssertionError, match="the steady state calls"):
        train(config(*QUIET), world)


@pytest.mark.gpu("cuda")
@pytest.mark.parametrize(
    "options",
    [[], ["--train.accumulate=2", "--train.ema=0.9"], ["--data.cache=device"], ["--loader.workers=1"]],
    ids=" ".join,
)
def test_steady_state_has_no_cuda_synchronization(
    config: Callable[..., Config], options: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = World(0, 1, torch.device("cuda", 0))
    format = speed.best_format(gpu.device)
    if format == "fp16" and "--train.ema=0.9" in options:
        format = "fp32"  # fp16 would wait for each step
    quiet = ["--run.device=cuda", f"--speed.precision={format}", "--debug.sync=error", "--train.steps=12"]
    quiet += ["--log.every=100"]
    if unsupported(quiet):
        with pytest.raises(UserError, match=re.escape(unsupported(quiet))):
            train(config("--run.name=a", *quiet, *options), gpu)
        return
    train(config("--run.name=a", *quiet, *options), gpu)
    prepare = data.Prepare.forward

    def synchronizing(self: Any, batch: Any, *others: Any) -> Any:
        batch[0].float().mean().item()
        return prepare(self, batch, *others)

    monkeypatch.setattr(data.Prepare, "forward", synchronizing)
    with pytest.raises(RuntimeError, match="synchroniz"):
        train(config("--run.name=b", *quiet, *options), gpu)
