"""Flags of Lightning's Trainer, of the model and of the data: each one acts in a run of a few steps."""

import json
import os
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from engine import overwriting
from lightning_runs import IGNORED, LightningProject, Project, column, rows
from torch import nn

# LightningCLI says so with --optimizer
OVERRIDDEN = "ignore:.Model.configure_optimizers. will be overridden"
pytestmark = [pytest.mark.filterwarnings(found) for found in [*IGNORED, OVERRIDDEN]]
TRAINER, BATCH = "--trainer", "--data.batch_size"
DETERMINISTIC = ["--trainer.deterministic=true", "--trainer.benchmark=false"]


@pytest.fixture(autouse=True)
def as_before(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Undo what Lightning sets for the whole process."""
    with mock.patch.dict(os.environ):
        yield
    torch.use_deterministic_algorithms(False)
    torch.backends.cudnn.benchmark = False
    torch.set_float32_matmul_precision("highest")
    torch.autograd.set_detect_anomaly(False)


@pytest.fixture(scope="session")
def p(lightning: LightningProject) -> Project:
    return lightning("mlp")


@pytest.fixture
def updates(monkeypatch: pytest.MonkeyPatch) -> list[list[torch.Tensor]]:
    """The gradients with which AdamW has updated the weights, of each step."""
    seen, step = list[list[torch.Tensor]](), torch.optim.AdamW.step

    def observe(optimizer: Any, *given: Any, **named: Any) -> Any:
        found = step(optimizer, *given, **named)
        seen.append([it.grad.clone() for group in optimizer.param_groups for it in group["params"]])
        return found

    monkeypatch.setattr(torch.optim.AdamW, "step", observe)
    return seen


def test_bf16_trains_with_a_fused_optimizer_and_clipping(
    p: Project, tmp_path: Path, updates: list[list[torch.Tensor]]
) -> None:
    """Lightning itself refuses a fused optimizer here.

    16-mixed needs CUDA: on a CPU, Lightning takes bfloat16.
    """
    dtypes, linear = set(), nn.functional.linear

    def observe(*given: Any) -> torch.Tensor:
        found = linear(*given)
        dtypes.add(found.dtype)
        return found

    with mock.patch.object(nn.functional, "linear", observe):
        cli = p.run(
            tmp_path, f"{TRAINER}.precision=bf16-mixed", f"{TRAINER}.gradient_clip_val=0.01"
        )
    assert torch.bfloat16 in dtypes
    assert cli.trainer.optimizers[0].defaults["fused"]
    assert min(column(tmp_path, "grad_norm")) > 0.1, "before clipping"
    assert [nn.utils.get_total_norm(step).item() for step in updates] == pytest.approx(
        [0.01] * 6, rel=1e-3
    )


@pytest.mark.test_all
def test_gradients_are_clipped_by_value(
    p: Project, tmp_path: Path, updates: list[list[torch.Tensor]]
) -> None:
    p.run(
        tmp_path, f"{TRAINER}.gradient_clip_val=0.001", f"{TRAINER}.gradient_clip_algorithm=value"
    )
    assert [max(it.abs().max().item() for it in step) for step in updates] == pytest.approx(
        [0.001] * 6
    )


def test_steps_take_several_micro_batches(p: Project, tmp_path: Path) -> None:
    options = [f"{TRAINER}.accumulate_grad_batches=3", f"{TRAINER}.val_check_interval=9"]
    cli = p.run(tmp_path, *options, *DETERMINISTIC, f"{BATCH}=8")
    assert cli.trainer.fit_loop.epoch_loop.batch_progress.total.completed == 18
    assert [row["step"] for row in rows(tmp_path)] == [1, 2, 3, 4, 5, 6]
    assert [row["step"] for row in rows(tmp_path, "val")] == [3, 6]
    assert torch.are_deterministic_algorithms_enabled()


@pytest.mark.test_all
def test_anomaly_detection_names_the_operation_of_the_first_nan(p: Project, tmp_path: Path) -> None:
    forward = p.model.MLP.forward

    def broken(net: Any, *given: Any) -> Any:
        loss, metrics = forward(net, *given)
        return loss + (net.head.weight[0, 0] * 0 - 1).sqrt(), metrics

    with (
        mock.patch.object(p.model.MLP, "forward", broken),
        pytest.warns(UserWarning, match="SqrtBackward0"),
        pytest.raises(RuntimeError, match="'SqrtBackward0' returned nan values"),
    ):
        p.run(tmp_path, f"{TRAINER}.detect_anomaly=true")


def test_non_finite_loss_ends_the_run_with_one_line(
    p: Project, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        p.run(tmp_path, "--model.lr=1e30")
    assert ended.value.code == 1
    assert capsys.readouterr().err.splitlines()[-1].endswith("lower model.lr")


@pytest.mark.test_all
@pytest.mark.parametrize(
    ("kind", "text"), [("simple", "run_training_batch"), ("advanced", "function calls")]
)
def test_profiler_prints_a_table(
    p: Project, tmp_path: Path, kind: str, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    p.run(tmp_path, f"{TRAINER}.profiler={kind}")
    assert text in caplog.text


@pytest.mark.test_all
@pytest.mark.filterwarnings("ignore:.*Profiler clears events at the end of each cycle")
def test_profiler_of_torch_writes_a_trace(p: Project, tmp_path: Path) -> None:
    p.run(tmp_path, f"{TRAINER}.profiler=pytorch")
    (trace,) = [
        json.loads(found.read_text()) for found in (tmp_path / "a").glob("fit*training_step*.json")
    ]
    assert any(event["name"].startswith("aten::") for event in trace["traceEvents"])


@pytest.mark.test_all
def test_short_runs(p: Project, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cli = p.run(tmp_path / "one", f"{TRAINER}.fast_dev_run=true")
    assert (cli.trainer.global_step, (tmp_path / "one/a/metrics.jsonl").exists()) == (1, False)
    # A fraction: jsonargparse reads 1 as 1.0, which is all, if the process has made a union of
    # float and int before.
    limits = [f"{TRAINER}.limit_train_batches=2", f"{TRAINER}.limit_val_batches=0.125"]
    limits.append(f"{TRAINER}.val_check_interval=2")
    cli = p.run(tmp_path / "limits", *limits)
    assert cli.trainer.current_epoch == 3
    found = [row["accuracy"] * 14 for row in rows(tmp_path / "limits", "val")]
    assert found == pytest.approx([round(value) for value in found]), "14 of the 113 rows"
    p.run(tmp_path / "time", f"{TRAINER}.max_time=00:00:00:01", f"{TRAINER}.max_steps=100000")
    assert "Time limit reached" in caplog.text


@pytest.mark.test_all
def test_same_batch_is_overfitted(p: Project, tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="turning off the train dataloader shuffling"):
        p.run(
            tmp_path, f"{TRAINER}.overfit_batches=1", f"{TRAINER}.max_steps=100", "--model.lr=0.01",
            "--model.net.dropout=0", "--model.weight_decay=0",
        )  # fmt: skip
    assert column(tmp_path, "loss")[-1] < 0.1 * column(tmp_path, "loss")[0]


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("SGD", ["--optimizer.momentum=0.9"]),
        pytest.param("pytorch_optimizer.LARS", [], marks=pytest.mark.test_all),
    ],
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning:pytorch_optimizer.*")
def test_optimizer_follows_one_cycle(
    p: Project, tmp_path: Path, name: str, options: list[str]
) -> None:
    cli = p.run(tmp_path, f"--optimizer={name}", "--optimizer.lr=0.02", *options)
    assert type(cli.trainer.optimizers[0]).__name__ == name.split(".")[-1]
    rates = column(tmp_path, "lr")
    assert rates[0] == pytest.approx(0.002)
    assert max(rates) == pytest.approx(0.02, rel=0.01)
    assert rates[-1] < 1e-6


@pytest.mark.parametrize(
    ("options", "rates"),
    [
        (
            ["CyclicLR", "base_lr=0.1", "max_lr=0.3", "step_size_up=2"],
            [0.1, 0.2, 0.3, 0.2, 0.1, 0.2],
        ),
        (["CosineAnnealingLR", "T_max=4"], [1.0, 0.8535534, 0.5, 0.1464466, 0.0, 0.1464466]),
    ],
)
def test_schedule_advances_with_each_step(
    p: Project, tmp_path: Path, options: list[str], rates: list[float]
) -> None:
    name, *more = options
    accumulate = [
        f"{TRAINER}.accumulate_grad_batches=2",
        f"{TRAINER}.val_check_interval=12",
        f"{BATCH}=8",
    ]
    schedule = [f"--lr_scheduler={name}", *(f"--lr_scheduler.{option}" for option in more)]
    p.run(tmp_path, "--optimizer=SGD", "--optimizer.lr=1.0", *schedule, *accumulate)
    assert column(tmp_path, "lr") == pytest.approx(rates, abs=1e-6)


@pytest.mark.test_all
def test_schedule_on_a_metric_advances_with_each_epoch(p: Project, tmp_path: Path) -> None:
    schedule = [
        f"--lr_scheduler{option}"
        for option in ("=ReduceLROnPlateau", ".monitor=val/loss", ".patience=0")
    ]
    epochs = [
        f"{TRAINER}.{option}"
        for option in ("limit_train_batches=2", "val_check_interval=2", "max_steps=8")
    ]
    p.run(
        tmp_path,
        "--optimizer=SGD",
        "--optimizer.lr=1",
        *schedule,
        "--lr_scheduler.threshold=10",
        "--lr_scheduler.threshold_mode=abs",
        *epochs,
    )
    assert column(tmp_path, "lr") == pytest.approx([1, 1, 1, 1, 0.1, 0.1, 0.01, 0.01])


def test_schedule_without_an_optimizer_is_one_line(
    p: Project, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        p.run(tmp_path, "--lr_scheduler=CosineAnnealingLR", "--lr_scheduler.T_max=4")
    assert ended.value.code == 1
    assert "--optimizer" in capsys.readouterr().err.splitlines()[-1]


def test_options_of_the_model_and_the_data(p: Project, tmp_path: Path) -> None:
    calls = list[dict[str, Any]]()
    with mock.patch.object(p.model.MLP, "compile", lambda net, **given: calls.append(given)):
        cli = p.run(
            tmp_path, "--model.compile_mode=default", "--model.matmul_precision=medium", "--data.workers=2",
            "--model.lr_scaling=sqrt", "--data.pin_memory=false", f"{TRAINER}.accumulate_grad_batches=4",
            f"{TRAINER}.val_check_interval=24", f"{BATCH}=4",
        )  # fmt: skip
    assert calls == [{"dynamic": False, "mode": "default"}]
    assert torch.get_float32_matmul_precision() == "medium"
    assert (cli.trainer.train_dataloader.num_workers, cli.trainer.train_dataloader.pin_memory) == (
        2,
        False,
    )
    assert max(column(tmp_path, "lr")) == pytest.approx(2e-3, rel=0.01)


@pytest.mark.test_all
def test_channels_last_keeps_activations_in_nhwc(
    lightning: LightningProject, tmp_path: Path
) -> None:
    p, found = lightning("resnet"), list[bool]()
    convolve = nn.Conv2d.forward

    def observe(layer: Any, inputs: torch.Tensor) -> torch.Tensor:
        outputs = convolve(layer, inputs)
        found.append(outputs.is_contiguous(memory_format=torch.channels_last))
        return outputs

    with mock.patch.object(nn.Conv2d, "forward", observe):
        p.run(
            tmp_path,
            "--model.channels_last=true",
            f"{TRAINER}.max_steps=3",
            f"{TRAINER}.limit_val_batches=1",
        )
    assert found
    assert all(found)


def test_two_devices_are_started_by_lightning(p: Project, tmp_path: Path) -> None:
    """SyncBatchNorm refuses a CPU, which shows that it is there."""
    options = [f"{TRAINER}.devices=2", f"{TRAINER}.strategy=ddp"]
    printed = p.finish(tmp_path, *options, f"{TRAINER}.sync_batchnorm=true", ranks=2, expect=1)
    assert "SyncBatchNorm layers only work with GPU modules" in printed


@pytest.mark.test_all
@pytest.mark.parametrize("name", ["fsdp", "FSDPStrategy"])
def test_sharding_needs_a_gpu(p: Project, tmp_path: Path, name: str) -> None:
    """So only the options are checked here."""
    policy = ["activation_checkpointing_policy=[torch.nn.Linear]", "state_dict_type=full"]
    options = [f"{TRAINER}.strategy.{option}" for option in policy] if name != "fsdp" else []
    with pytest.raises(ValueError, match="requires a GPU accelerator"):
        p.run(tmp_path, f"{TRAINER}.strategy={name}", *options)


def test_rows_are_right_if_the_next_step_overwrites_the_outputs_of_the_model(
    p: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = [f"{TRAINER}.log_every_n_steps=3", f"{TRAINER}.accumulate_grad_batches=2"]
    p.run(tmp_path / "kept", *options)
    monkeypatch.setattr(p.module, "build", overwriting(p.model.build))
    p.run(tmp_path / "overwritten", *options)
    for split in ("train", "val"):
        assert rows(tmp_path / "overwritten", split) == rows(tmp_path / "kept", split)


def test_cuda_graphs_of_torch_compile_are_refused_where_gradients_are_kept(
    p: Project, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with mock.patch.object(nn.Module, "compile"), pytest.raises(SystemExit):
        p.run(tmp_path, "--model.compile_mode=max-autotune", f"{TRAINER}.accumulate_grad_batches=2")
    found = capsys.readouterr().err.splitlines()[-1]
    assert found.startswith(
        "error: model.compile_mode is max-autotune: its CUDA graphs overwrite gradients"
    )
