"""Options of training with Lightning: each one acts in a run of a few steps."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from engine import overwriting
from lightning_runs import IGNORED, LightningProject, Project, column, rows
from torch import distributed, nn
from torch.multiprocessing.spawn import start_processes

# LightningCLI says so with --optimizer
OVERRIDDEN = "ignore:.Model.configure_optimizers. will be overridden"
pytestmark = [pytest.mark.filterwarnings(message) for message in [*IGNORED, OVERRIDDEN]]


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    """Undo what Lightning sets for the whole process."""
    with mock.patch.dict(os.environ):
        yield
    torch.backends.cudnn.benchmark = False
    torch.set_float32_matmul_precision("highest")


@pytest.fixture(scope="session")
def p(lightning: LightningProject) -> Project:
    return lightning("mlp")


def accumulate(batches: int, validate_every: int) -> list[str]:
    """Return options for steps of several micro-batches, of 8 samples."""
    return [
        f"--trainer.accumulate_grad_batches={batches}",
        f"--trainer.val_check_interval={batches * validate_every}",
        "--data.batch_size=8",
    ]


@pytest.mark.parametrize("precision", ["bf16-mixed", "32-true"])
def test_gradients_are_clipped_and_their_norm_is_that_before(
    p: Project, tmp_path: Path, precision: str
) -> None:
    """Lightning refuses to clip before a fused optimizer in mixed precision."""
    norms = list[float]()
    step = torch.optim.AdamW.step

    def observe(optimizer: Any, closure: Any) -> Any:
        result = step(optimizer, closure)
        values = [value for group in optimizer.param_groups for value in group["params"]]
        norms.append(nn.utils.get_total_norm([value.grad for value in values]).item())
        return result

    options = [f"--trainer.precision={precision}", "--trainer.gradient_clip_val=0.01"]
    with mock.patch.object(torch.optim.AdamW, "step", observe):
        cli = p.run(tmp_path, *options)
    assert cli.trainer.optimizers[0].defaults["fused"] == (precision == "32-true")
    assert min(column(tmp_path, "grad_norm")) > 0.1
    assert norms == pytest.approx([0.01] * 6, rel=1e-3)


def test_steps_take_several_micro_batches(p: Project, tmp_path: Path) -> None:
    cli = p.run(tmp_path, *accumulate(3, validate_every=3))
    assert cli.trainer.fit_loop.epoch_loop.batch_progress.total.completed == 18
    assert column(tmp_path, "step") == [1, 2, 3, 4, 5, 6]
    assert [row["step"] for row in rows(tmp_path, "val")] == [3, 6]


def test_non_finite_loss_ends_the_run_with_one_line(
    p: Project, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        p.run(tmp_path, "--model.lr=1e30")
    assert ended.value.code == 1
    assert capsys.readouterr().err.splitlines()[-1].endswith("lower model.lr")


def test_optimizer_follows_one_cycle(p: Project, tmp_path: Path) -> None:
    p.run(tmp_path, "--optimizer=SGD", "--optimizer.lr=0.02", "--optimizer.momentum=0.9")
    rates = column(tmp_path, "lr")
    assert rates[0] == pytest.approx(0.002)
    assert max(rates) == pytest.approx(0.02, rel=0.01)
    assert rates[-1] < 1e-6


def test_schedule_advances_with_each_step(p: Project, tmp_path: Path) -> None:
    schedule = [
        "--lr_scheduler=CyclicLR",
        "--lr_scheduler.base_lr=0.1",
        "--lr_scheduler.max_lr=0.3",
        "--lr_scheduler.step_size_up=2",
    ]
    p.run(tmp_path, "--optimizer=SGD", *schedule, *accumulate(2, validate_every=6))
    assert column(tmp_path, "lr") == pytest.approx([0.1, 0.2, 0.3, 0.2, 0.1, 0.2])


def test_schedule_without_an_optimizer_is_one_line(
    p: Project, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        p.run(tmp_path, "--lr_scheduler=CosineAnnealingLR", "--lr_scheduler.T_max=4")
    assert ended.value.code == 1
    assert "--optimizer" in capsys.readouterr().err.splitlines()[-1]


def test_options_of_the_model_and_the_data(p: Project, tmp_path: Path) -> None:
    calls = list[dict[str, Any]]()
    options = ["--model.compile_mode=default", "--data.workers=2", "--data.pin_memory=false"]
    with mock.patch.object(p.model.MLP, "compile", lambda net, **given: calls.append(given)):
        cli = p.run(tmp_path, *options, "--model.net.size=small")
    assert calls == [{"dynamic": False, "mode": "default"}]
    loader = cli.trainer.train_dataloader
    assert loader.num_workers == 2
    assert not loader.pin_memory


@pytest.mark.test_all
def test_channels_last_keeps_activations_in_nhwc(
    lightning: LightningProject, tmp_path: Path
) -> None:
    in_nhwc = list[bool]()
    convolve = nn.Conv2d.forward

    def observe(layer: Any, inputs: torch.Tensor) -> torch.Tensor:
        outputs = convolve(layer, inputs)
        in_nhwc.append(outputs.is_contiguous(memory_format=torch.channels_last))
        return outputs

    options = ["--trainer.max_steps=3", "--trainer.limit_val_batches=1"]
    with mock.patch.object(nn.Conv2d, "forward", observe):
        lightning("resnet").run(tmp_path, "--model.channels_last=true", *options)
    assert in_nhwc
    assert all(in_nhwc)


def test_two_devices_are_started_by_lightning(p: Project, tmp_path: Path) -> None:
    """SyncBatchNorm refuses a CPU, which shows that it is there."""
    options = ["--trainer.devices=2", "--trainer.strategy=ddp", "--trainer.sync_batchnorm=true"]
    printed = p.finish(tmp_path, *options, ranks=2, expect=1)
    assert "SyncBatchNorm layers only work with GPU modules" in printed


def test_rows_are_right_if_the_next_step_overwrites_the_outputs_of_the_model(
    p: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ["--trainer.log_every_n_steps=3", "--trainer.accumulate_grad_batches=2"]
    p.run(tmp_path / "kept", *options)
    monkeypatch.setattr(p.module, "build", overwriting(p.model.build))
    p.run(tmp_path / "overwritten", *options)
    for split in ("train", "val"):
        assert rows(tmp_path / "overwritten", split) == rows(tmp_path / "kept", split)


def read_means(rank: int, metrics: Any, store: Path) -> None:
    """Check the means of two ranks, in one of them."""
    distributed.init_process_group("gloo", f"file://{store}", rank=rank, world_size=2)
    means = metrics.Means()
    for own_sum, own_count in ([1.0, 2, 0], [4, 2, 0]), ([2.0, 0, 0], [3, 0, 0]):
        by_class = torch.tensor(own_sum) * (rank + 1)
        counts = torch.tensor(own_count)
        means.update({"loss": (by_class.sum(), 7), "iou": (by_class, counts)})
    row = means.compute()
    assert row["loss"].item() == pytest.approx((5 + 10) / 28)
    assert row["iou"].item() == pytest.approx((9 / 14 + 6 / 4) / 2), "two classes have a count"
    distributed.destroy_process_group()


def test_means_of_two_ranks_are_exact_for_each_class(p: Project, tmp_path: Path) -> None:
    start_processes(read_means, (p.metrics, tmp_path / "store"), 2, start_method="fork")
