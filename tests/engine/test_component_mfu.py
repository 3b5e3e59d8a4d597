"""The FLOPs of a layer by hand; compiled, frozen and sharded models.

The first step alone is wrapped.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from engine import MakePackage, rows
from torch import nn

ON = ["--train.steps=4", "--mfu.enabled=true"]


def flops_of(
    p: Any,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    *options: str,
) -> int:
    """Train, and return the FLOPs of a step on one device."""
    found = []
    on_log = p.components.mfu.Mfu.on_log

    def keep(
        mfu: Any,
        run: Any,
        row: dict[str, float],
    ) -> None:
        found.append(mfu.flops)
        on_log(mfu, run, row)

    with monkeypatch.context() as patched:
        patched.setattr(p.components.mfu.Mfu, "on_log", keep)
        p.train_here(folder, *ON, *options)
    assert len(set(found)) == 1
    return int(found[0])


@pytest.fixture
def p(tiny: MakePackage) -> Any:
    return tiny("mfu")


def test_flops_are_those_by_hand(
    p: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two FLOPs per weight and sample forward, and as many for each of two gradients."""
    first = 4 * 8
    second = 8 * 1
    hidden = 8 * 1
    by_hand = 2 * 16 * (2 * (first + second) + hidden)
    assert flops_of(p, tmp_path / "one", monkeypatch) == by_hand
    assert (
        flops_of(p, tmp_path / "two", monkeypatch, "--train.gradient_accumulation_steps=2")
        == 2 * by_hand
    )


@pytest.mark.parametrize(
    "kind",
    [
        nn.LSTM,
        nn.GRU,
        nn.RNN,
    ],
)
def test_flops_of_a_recurrent_network_are_those_by_hand(p: Any, kind: Any) -> None:
    """Two FLOPs per weight and element, as many for the gradients of weights and inputs.

    The first state has none.
    """
    count = 3
    length = 50
    inputs = 8
    hidden = 16

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(5, inputs)
            self.cells = kind(inputs, hidden)

        def forward(self, batch: torch.Tensor) -> Any:
            loss = self.cells(self.table(batch))[0].sum()
            return loss, {"loss": (loss.detach(), 1)}

    mfu = p.components.mfu.Mfu(
        p.components.mfu.MfuConfig(enabled=True),
        p.distributed.World(
            0,
            1,
            torch.device("cpu"),
        ),
    )
    mfu.convert_model(Net())
    flops = mfu._count(mfu.copy, (torch.zeros(length, count, dtype=torch.long),))
    gates = {nn.LSTM: 4, nn.GRU: 3, nn.RNN: 1}[kind]
    by_hand = 2 * count * gates * hidden * (3 * length * inputs + (3 * length - 1) * hidden)
    assert flops == pytest.approx(by_hand, rel=0.02)


def test_speed_is_that_of_the_row(
    p: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(p.components.mfu, "peak", lambda *_: 0.5)
    flops = flops_of(p, tmp_path, monkeypatch, "--log.every=2", "--train.eval_every=2")
    found = [json.loads(line) for line in (tmp_path / "a/metrics.jsonl").read_text().splitlines()]
    trained = [row for row in found if row["split"] == "train"]
    assert [row["tflops"] for row in trained] == [
        flops * row["samples_per_second"] / 16 / 1e12 for row in trained
    ]
    assert [row["mfu"] for row in trained] == [2 * row["tflops"] for row in trained]


def test_random_numbers_are_those_without_it(
    p: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of a model that draws on the CPU while it is counted, and of a compiled one."""
    forward = p.model.Net.forward

    def noisy(
        net: Any,
        inputs: torch.Tensor,
        targets: torch.Tensor,
    ) -> Any:
        return forward(net, inputs + torch.randn(inputs.shape), targets)

    monkeypatch.setattr(p.model.Net, "forward", noisy)
    p.train_here(tmp_path / "with", *ON)
    p.train_here(tmp_path / "without", "--train.steps=4")
    with_it = rows(tmp_path / "with")
    for row in with_it:
        row.pop("tflops", None)
    assert with_it == rows(tmp_path / "without")


def test_model_that_cannot_be_counted_is_one_line(
    p: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    forward = p.model.Net.forward

    def dynamic(
        net: Any,
        inputs: torch.Tensor,
        targets: torch.Tensor,
    ) -> Any:
        assert inputs.isfinite().all()
        return forward(net, inputs, targets)

    monkeypatch.setattr(p.model.Net, "forward", dynamic)
    p.train_here(tmp_path, *ON)
    warning = "warning: mfu counts no FLOPs, as the model does not run without data ("
    assert capsys.readouterr().err.count(warning) == 1
    assert "tflops" not in rows(tmp_path, "train")[-1]


def test_compiled_model_is_counted_before_it_is_compiled(
    p: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    monkeypatch.setattr(
        torch.nn.Module,
        "compile",
        lambda net, **options: calls.append(net),
    )
    plain = flops_of(p, tmp_path / "plain", monkeypatch)
    assert flops_of(p, tmp_path / "compiled", monkeypatch, "--speed.compile=model") == plain
    assert len(calls) == 1
