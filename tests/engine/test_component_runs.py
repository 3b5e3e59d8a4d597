"""Each component, and each pair of components, trains; how those of the proof of concept act."""

from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import torch
from covering import covering
from engine import MakePackage, equal, rows, saved
from matrix import COMPONENTS, MODULES

COVER = covering(COMPONENTS, MODULES)
RANKS = {"fsdp": 2}
"""Processes that a component needs; 1 for the others."""


def test_every_state_of_each_pair_is_covered() -> None:
    for one, other in combinations(MODULES, 2):
        assert {(one in chosen, other in chosen) for chosen in COVER} == {(a, b) for a in (0, 1) for b in (0, 1)}
    table: dict[str, dict[str, Any]] = {"a": {}, "b": {"conflicts": ["a"]}, "c": {"requires": ["a"]}, "d": {}}
    found = covering(table, list(table))
    assert ["a", "b"] not in [chosen[:2] for chosen in found]
    assert all("a" in chosen for chosen in found if "c" in chosen)


@pytest.mark.slow
@pytest.mark.parametrize("chosen", COVER, ids=lambda chosen: "-".join(chosen) or "none")
def test_components_train_together_and_resume(package: MakePackage, tmp_path: Path, chosen: list[str]) -> None:
    """Those that need another number of processes than the rest are left off, and then trained alone."""
    p = package("mlp", *chosen)
    for ranks in {RANKS.get(name, 1) for name in chosen} or {1}:
        enabled = [f"--{name}.enabled=true" for name in chosen if name in ("ema",) or RANKS.get(name, 1) == ranks]
        folder, options = tmp_path / str(ranks), [*enabled, "--train.eval_every=3"]
        p.finish(folder, *options, "--train.steps=3", ranks=ranks)
        p.finish(folder, *options, "--train.steps=6", ranks=ranks)
        found = rows(folder)
        assert [row["step"] for row in found] == [1, 2, 3, 3, 4, 5, 6, 6]
        assert found[-1]["loss"] < found[0]["loss"]


@pytest.mark.slow
def test_sharded_run_equals_ddp_and_its_weights_are_whole(tiny: MakePackage, tmp_path: Path) -> None:
    p, options = tiny("ema", "fsdp"), ["--train.steps=6", "--train.eval_every=3", "--ema.enabled=true"]
    options += ["--train.micro_batch=4", "--train.accumulate=2"]
    p.finish(tmp_path / "ddp", *options, ranks=2)
    p.finish(tmp_path / "fsdp", *options, "--fsdp.enabled=true", ranks=2)
    for mine, other in zip(rows(tmp_path / "fsdp"), rows(tmp_path / "ddp"), strict=True):
        assert mine["loss"] == pytest.approx(other["loss"], rel=1e-4)
    weights = [p.checkpoint.load_weights(tmp_path / name / "a") for name in ("fsdp", "ddp")]
    assert weights[0].keys() == weights[1].keys()
    for name, weight in weights[0].items():
        torch.testing.assert_close(weight, weights[1][name], rtol=1e-3, atol=2e-4)
    done = p.finish(tmp_path / "ddp", *options, "--train.steps=9", "--fsdp.enabled=true", ranks=2, expect=1)
    assert "was saved without fsdp" in done.stderr


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


def test_average_can_be_added_to_a_run_and_removed_from_it(tiny: MakePackage, tmp_path: Path) -> None:
    p = tiny("ema")
    for number, enabled in enumerate(["false", "true", "false"], 1):
        p.train_here(tmp_path, f"--train.steps={3 * number}", f"--ema.enabled={enabled}")
    assert saved(tmp_path)["step"] == 9


def out_of_memory(forward: Callable[..., Any], largest: int) -> Callable[..., Any]:
    """Return a `forward` that fails for more samples."""

    def limited(self: Any, inputs: torch.Tensor, targets: torch.Tensor) -> Any:
        if self.training and len(inputs) > largest:
            raise torch.OutOfMemoryError("out of memory")
        return forward(self, inputs, targets)

    return limited


def test_smaller_forward_passes_train_the_same_batch(
    tiny: MakePackage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    p, options = tiny("oom"), ["--train.steps=6", "--train.accumulate=2", "--model.dropout=0", "--oom.enabled=true"]
    p.train_here(tmp_path / "whole", *options)
    monkeypatch.setattr(p.model.Net, "forward", out_of_memory(p.model.Net.forward, 5))
    p.train_here(tmp_path / "halved", *options)
    for mine, other in zip(rows(tmp_path / "halved"), rows(tmp_path / "whole"), strict=True):
        assert mine["loss"] == pytest.approx(other["loss"], rel=1e-5)
    assert saved(tmp_path / "halved")["components"]["oom"] == {"size": 4}
    p.train_here(tmp_path / "resumed", *options, "--train.steps=3", "--optim.lr=1e-3")
    with pytest.raises(p.errors.UserError, match="out of memory with 8 samples"):
        p.train_here(tmp_path / "small", *options, "--oom.smallest=7")


@pytest.mark.parametrize(("component", "ranks"), [("fsdp", 1), ("oom", 2)])
def test_component_that_cannot_act_is_one_line(
    package: MakePackage, tmp_path: Path, component: str, ranks: int
) -> None:
    done = package("mlp", component).finish(tmp_path, f"--{component}.enabled=true", ranks=ranks, expect=1)
    assert f"{component}.enabled" in done.stderr
