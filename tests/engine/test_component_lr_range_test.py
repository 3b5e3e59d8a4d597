"""The range test ends when the loss diverges, and suggests a rate that trains."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from engine import MakePackage, Package, rows

TEST = [
    "--lr_range_test.enabled=true",
    "--train.steps=120",
    "--log.every=50",
    "--train.eval_every=500",
]


def results(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "a/lr_range_test.json").read_text())
    return found


def test_test_ends_when_the_loss_diverges_and_suggests_a_rate(
    package: MakePackage, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    p = package("mlp", "lr-range-test")
    p.train_here(tmp_path, *TEST)
    found = results(tmp_path)
    lowest = found["smoothed"].index(min(found["smoothed"][10:]))
    assert 20 < lowest < len(found["rates"]) - 1 < 119
    assert found["optim.lr"] == found["rates"][lowest] / 10
    assert 1e-4 < found["optim.lr"] < 1e-1
    assert (
        f"lr_range_test suggests --optim.lr {found['optim.lr']:.2g}: a tenth of"
        in capsys.readouterr().out
    )
    assert not (tmp_path / "a/checkpoints").exists()


def test_suggestion_is_for_the_base_batch(package: MakePackage, tmp_path: Path) -> None:
    p = package("mlp", "lr-range-test")
    p.train_here(tmp_path / "plain", *TEST, "--optim.lr_scaling=none")
    p.train_here(tmp_path / "scaled", *TEST, "--optim.lr_scaling=linear", "--optim.base_batch=4")
    plain = results(tmp_path / "plain")
    scaled = results(tmp_path / "scaled")
    assert scaled["rates"] == plain["rates"]
    assert scaled["optim.lr"] == pytest.approx(plain["optim.lr"] / 4)


def test_smoothed_loss_is_the_corrected_moving_average(package: MakePackage) -> None:
    found = package("mlp", "lr-range-test").components.lr_range_test.smooth([4.0, 2.0, 1.0])
    weights = [0.81, 0.9, 1.0]
    assert found == pytest.approx(
        [
            4.0,
            (0.9 * 4 + 2) / 1.9,
            (weights[0] * 4 + 0.9 * 2 + 1) / sum(weights),
        ]
    )


@pytest.mark.parametrize("every", [1, 50])
def test_loss_that_is_not_finite_ends_the_test_with_its_results(
    package: MakePackage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, every: int
) -> None:
    p = package("mlp", "lr-range-test")
    original = p.train.compute_loss

    def nan_at_a_high_rate(net: Any, batch: Any) -> Any:
        loss, metrics = original(net, batch)
        nan_at_a_high_rate.calls += 1  # type: ignore[attr-defined]
        factor = math.nan if nan_at_a_high_rate.calls > 30 else 1.0  # type: ignore[attr-defined]
        return loss * factor, metrics | {"loss": (metrics["loss"][0] * factor, metrics["loss"][1])}

    nan_at_a_high_rate.calls = 0  # type: ignore[attr-defined]
    monkeypatch.setattr(p.train, "compute_loss", nan_at_a_high_rate)
    p.train_here(tmp_path, *TEST, f"--log.every={every}")
    assert len(results(tmp_path)["losses"]) == 30
    assert (tmp_path / "a/lr_range_test.png").exists()


def test_gradients_that_overflow_are_no_error(
    package: MakePackage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    p = package("mlp", "lr-range-test")
    clip = p.train.optim.clip

    def overflowing(parameters: Any, *limits: Any) -> Any:
        overflowing.calls += 1  # type: ignore[attr-defined]
        factor = math.inf if overflowing.calls == 30 else 1  # type: ignore[attr-defined]
        return clip(parameters, *limits) * factor

    overflowing.calls = 0  # type: ignore[attr-defined]
    monkeypatch.setattr(p.train.optim, "clip", overflowing)
    p.train_here(tmp_path, *TEST, "--log.every=1")
    assert len(results(tmp_path)["losses"]) > 30


def test_two_ranks_agree(tiny: MakePackage, tmp_path: Path) -> None:
    p: Package = tiny("lr-range-test")
    options = [*TEST, "--train.batch_size=4", "--train.steps=60"]
    p.train_here(tmp_path / "one", *options, "--train.gradient_accumulation_steps=2")
    p.finish(tmp_path / "two", *options, ranks=2)
    one = results(tmp_path / "one")
    two = results(tmp_path / "two")
    assert two["losses"][:40] == pytest.approx(one["losses"][:40], rel=1e-4)
    assert [row["step"] for row in rows(tmp_path / "two")] == [
        row["step"] for row in rows(tmp_path / "one")
    ]


def test_schedules_are_refused(package: MakePackage, tmp_path: Path) -> None:
    p = package("mlp", "lr-range-test", "schedules")
    with pytest.raises(
        p.errors.UserError,
        match=r"^lr_range_test.enabled and schedules.enabled exclude each other: set ",
    ):
        p.train_here(tmp_path, *TEST, "--schedules.enabled=true")
