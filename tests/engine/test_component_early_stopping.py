"""Early stopping with a real metric, on two ranks, and beside the best checkpoint."""

import json
from pathlib import Path

import pytest
from engine import MakePackage, Package, checkpoints, rows, saved

OPTIONS = [
    "--early_stopping.enabled=true",
    "--train.eval_every=2",
    "--train.epochs=50",
    "--optim.lr=0.3",
]
"""The rate is so high that the validation loss stops falling early."""


def first_stop(
    losses: list[float],
    patience: int,
    delta: float,
) -> int:
    """Return the number of validations until the run ends: the definition, without a state."""
    for count in range(1, len(losses) + 1):
        best = float("inf")
        since = 0
        for loss in losses[:count]:
            best, since = (loss, 0) if loss < best - delta else (best, since + 1)
        if since >= patience:
            return count
    return len(losses)


@pytest.mark.parametrize(
    ("patience", "delta"),
    [
        (1, 0.0),
        (3, 0.0),
        (4, 0.05),
    ],
)
def test_run_ends_where_the_losses_of_the_whole_run_say(
    tiny: MakePackage, tmp_path: Path, patience: int, delta: float
) -> None:
    p: Package = tiny("early-stopping")
    p.train_here(tmp_path / "whole", *OPTIONS, "--early_stopping.enabled=false")
    p.train_here(
        tmp_path / "early",
        *OPTIONS,
        f"--early_stopping.patience={patience}",
        f"--early_stopping.min_delta={delta}",
    )
    whole, early = (rows(tmp_path / name, "val") for name in ("whole", "early"))
    count = first_stop([row["loss"] for row in whole], patience, delta)
    assert early == whole[:count]
    assert count < len(whole)
    assert saved(tmp_path / "early")["step"] == early[-1]["step"]
    best = json.loads((tmp_path / "early/a/checkpoints/best.json").read_text())
    assert best["value"] == min(row["loss"] for row in early)
    assert any(
        folder.name.endswith(f"{best['step']:08d}") for folder in checkpoints(tmp_path / "early")
    )


def test_two_ranks_end_at_the_same_step(tiny: MakePackage, tmp_path: Path) -> None:
    p: Package = tiny("early-stopping")
    options = [*OPTIONS, "--early_stopping.patience=2", "--train.batch_size=4"]
    p.train_here(tmp_path / "one", *options, "--train.gradient_accumulation_steps=2")
    done = p.finish(tmp_path / "two", *options, ranks=2)
    assert done.stdout.count("early_stopping ends the run") == 1
    assert [row["step"] for row in rows(tmp_path / "two")] == [
        row["step"] for row in rows(tmp_path / "one")
    ]


def test_metric_that_the_model_does_not_report_is_one_line(
    tiny: MakePackage, tmp_path: Path
) -> None:
    p: Package = tiny("early-stopping")
    with pytest.raises(
        p.errors.UserError, match=r"^train.monitor is accuracy: the validation metrics are loss$"
    ):
        p.train_here(tmp_path, *OPTIONS, "--train.monitor=accuracy", "--train.monitor_mode=max")
