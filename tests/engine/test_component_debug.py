"""Debugging tools name the first NaN, wrong gradients and synchronization."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
from engine import MakePackage, equal, rows, saved
from torch import Tensor, nn

ON = ["--debug.enabled=true", "--train.steps=6", "--train.eval_every=3"]


def test_first_bad_output_and_gradient_are_named(tiny: MakePackage) -> None:
    p = tiny("debug")
    refused = p.errors.UserError
    find_nan = p.components.debug.find_nan
    net = nn.Sequential(
        nn.Linear(2, 2),
        nn.Sequential(nn.Linear(2, 2), nn.ReLU()),
        nn.Linear(2, 1),
    )
    handles = find_nan(net)
    net(torch.ones(1, 2)).sum().backward()
    with torch.no_grad():
        net.get_parameter("1.0.bias").fill_(torch.inf)
    with pytest.raises(
        refused, match=r"^debug.nan: the output of 1.0 \(Linear\) is the first with infinity$"
    ):
        net(torch.ones(1, 2))
    nn.init.ones_(net.get_parameter("1.0.bias"))
    found = net(torch.ones(1, 2))
    with pytest.raises(
        refused,
        match=r"^debug.nan: the gradient of the output of 2 \(Linear\) is the first with NaN$",
    ):
        (found * torch.nan).sum().backward()
    for handle in handles:
        handle.remove()
    assert not net(torch.full((1, 2), torch.nan)).isfinite().any()


def test_first_step_with_nan_ends_the_run_before_it_is_logged(
    tiny: MakePackage, tmp_path: Path
) -> None:
    p = tiny("debug")
    options = [*ON, "--model.kind=nan"]
    with pytest.raises(
        p.errors.UserError, match=r"the output of the model \(Net\) is the first with infinity"
    ):
        p.train_here(tmp_path, *options, "--debug.nan=true")
    assert [row["step"] for row in rows(tmp_path)] == [1, 2]
    with pytest.raises(p.errors.UserError, match="lower optim.lr"):
        p.train_here(tmp_path / "off", *options)


def test_batch_with_nan_is_named(
    tiny: MakePackage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    p = tiny("debug")
    prepare = p.data.Prepare.forward
    monkeypatch.setattr(
        p.data.Prepare, "forward", lambda *given: (prepare(*given)[0] / 0, prepare(*given)[1])
    )
    with pytest.raises(
        p.errors.UserError, match="debug.nan: a tensor of the batch is the first with"
    ):
        p.train_here(tmp_path, *ON, "--debug.nan=true")


class Wrong(torch.autograd.Function):
    """The square, whose derivative has an error."""

    @staticmethod
    def forward(ctx: Any, value: Tensor) -> Tensor:
        ctx.save_for_backward(value)
        return value**2

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        factor: Tensor = ctx.saved_tensors[0] * 1.99
        return gradients[0] * factor


class Net(nn.Module):
    """A loss with a noise that is drawn in `forward`, a tied weight, and one wrong derivative."""

    def __init__(self) -> None:
        super().__init__()
        self.right, self.wrong, self.unused = (nn.Parameter(torch.zeros(3)) for _ in range(3))
        self.layers = nn.Sequential(
            nn.Linear(3, 3),
            nn.ReLU(),
            nn.Linear(3, 3),
            nn.BatchNorm1d(3),
            nn.Dropout(0.5),
        )
        self.layers[2].weight = self.layers[0].weight
        self.square: Any = Wrong.apply

    def forward(self, inputs: Tensor) -> tuple[Tensor, dict[str, Any]]:
        noise = torch.randn_like(inputs)
        loss = (self.layers(inputs + noise) * self.right + self.square(self.wrong)).sum()
        return loss, {"loss": (loss.detach(), 1)}


@pytest.mark.parametrize("kind", [tuple, dict])
def test_parameter_with_a_wrong_gradient_is_named(tiny: MakePackage, kind: type) -> None:
    p = tiny("debug")
    net = Net()
    gradcheck = p.components.debug.gradcheck
    batch: Any = (torch.randn(5, 3),) if kind is tuple else {"inputs": torch.randn(5, 3)}
    with pytest.raises(
        p.errors.UserError,
        match=r"^debug.gradcheck: the gradient of wrong is wrong \(.*: check the code",
    ):
        gradcheck(net, batch)
    before = {name: value.clone() for name, value in net.state_dict().items()}
    noise = torch.get_rng_state()
    net.square = torch.square
    gradcheck(net, batch)
    assert equal(before, dict(net.state_dict()))
    assert torch.equal(noise, torch.get_rng_state())
    assert net.training


def test_tools_change_no_result(tiny: MakePackage, tmp_path: Path) -> None:
    p = tiny("debug")
    seen = list[tuple[bool, bool]]()
    original = p.metrics.Meter.add

    def add(*given: Any) -> None:
        seen.append((torch.is_anomaly_enabled(), torch.are_deterministic_algorithms_enabled()))
        original(*given)

    tools = [f"--debug.{name}=true" for name in ("nan", "anomaly", "gradcheck", "deterministic")]
    with mock.patch.object(p.metrics.Meter, "add", add):
        p.train_here(tmp_path / "with", *ON, *tools)
    assert set(seen) == {(True, True)}
    assert not torch.is_anomaly_enabled()
    assert not torch.are_deterministic_algorithms_enabled()
    p.train_here(tmp_path / "without", *ON)
    assert equal(
        saved(tmp_path / "with"), saved(tmp_path / "without") | {"components": {"debug": {}}}
    )
    assert rows(tmp_path / "with") == rows(tmp_path / "without")


def test_synchronization_is_reported_within_steps_after_the_first_ones(tiny: MakePackage) -> None:
    p = tiny("debug")
    modes = list[tuple[int, str]]()
    cfg = p.components.debug.DebugConfig(enabled=True, synchronization="error")
    debug = p.components.debug.Debug(
        cfg,
        p.distributed.World(
            0,
            1,
            torch.device("cuda", 0),
        ),
    )
    run: Any = SimpleNamespace(
        step=7,
        model=nn.Identity(),
        cfg=None,
    )
    with mock.patch.object(
        torch.cuda, "set_sync_debug_mode", lambda mode: modes.append((run.step, mode))
    ):
        debug.on_train_start(run)
        plain = p.component.Step(lambda *_: {}, lambda: torch.zeros(()))
        step = debug.wrap_step(run, plain)
        for _ in range(4):
            step.compute_gradients((), True, True)
            run.step += 1
            debug.on_step_end(run)
    assert [found for found in modes if found[1] == "error"] == [(10, "error")]
    assert modes[-1] == (11, "default")


@pytest.mark.filterwarnings(
    "ignore:.*torch.jit.script_method:DeprecationWarning"
)  # of torch.compile's own import
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--debug.synchronization=error"],
            r"^debug.synchronization is error: only CUDA reports it, .* is on cpu",
        ),
        (
            ["--debug.nan=true", "--speed.compile=model"],
            "compiled code has no modules: set speed.compile=off",
        ),
        (["--debug.nan=true", "--speed.precision=fp16"], "gradients that overflow are normal"),
    ],
)
def test_tool_that_cannot_work_is_one_line(
    tiny: MakePackage, tmp_path: Path, options: list[str], message: str
) -> None:
    p = tiny("debug")
    with pytest.raises(p.errors.UserError, match=message):
        p.train_here(tmp_path, *ON, *options)


def test_sharded_weights_are_refused(tiny: MakePackage) -> None:
    p = tiny("debug", "fsdp")
    cfg = p.options("--debug.enabled=true", "--debug.gradcheck=true", "--fsdp.enabled=true")
    two_ranks = p.distributed.World(0, 2, torch.device("cpu"))
    with pytest.raises(
        p.errors.UserError, match="debug.gradcheck needs whole weights, which fsdp divides"
    ):
        p.components.build_components(cfg, two_ranks).check(cfg, ())
