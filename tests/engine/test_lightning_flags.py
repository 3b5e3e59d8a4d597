"""Options of training with Lightning: each one acts in a run of a few steps."""

import math
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
from engine import overwriting, summary
from lightning_runs import IGNORED, LightningProject, Project, column, rows
from torch import distributed, nn
from torch.multiprocessing.spawn import start_processes
from warm import one_of_two_ranks

pytestmark = [
    *IGNORED,
    # LightningCLI says so with --optimizer
    pytest.mark.filterwarnings("ignore:.Model.configure_optimizers. will be overridden"),
]


@pytest.fixture(scope="session")
def p(lightning: LightningProject) -> Project:
    return lightning("mlp")


def accumulate(
    batches: int,
    validate_every: int,
) -> list[str]:
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

    def observe(
        optimizer: Any,
        closure: Any,
    ) -> Any:
        result = step(optimizer, closure)
        decayed, _ = optimizer.param_groups
        gradients = [parameter.grad for parameter in decayed["params"]]
        norms.append(nn.utils.get_total_norm(gradients).item())
        assert torch.get_float32_matmul_precision() == "highest"
        return result

    options = [f"--trainer.precision={precision}", "--trainer.gradient_clip_val=0.01"]
    torch.set_float32_matmul_precision("high")
    with mock.patch.object(torch.optim.AdamW, "step", observe):
        cli = p.run(tmp_path, *options)
    (optimizer,) = cli.trainer.optimizers
    assert optimizer.defaults["fused"] == (precision == "32-true")
    assert min(column(tmp_path, "grad_norm")) > 0.1
    assert min(norms) > 0.005
    assert max(norms) < 0.0101, "of most gradients"


def test_steps_take_several_micro_batches(
    p: Project,
    tmp_path: Path,
) -> None:
    options = accumulate(3, validate_every=3)
    cli = p.run(tmp_path, *options)
    epoch_loop = cli.trainer.fit_loop.epoch_loop
    assert epoch_loop.batch_progress.total.completed == 18
    assert column(tmp_path, "step") == [1, 2, 3, 4, 5, 6]
    assert column(tmp_path, "step", "val") == [3, 6]


def test_non_finite_loss_ends_the_run_with_one_line(
    p: Project,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as ended:
        p.run(tmp_path, "--model.lr=1e30")
    assert ended.value.code == 1
    printed = capsys.readouterr().err
    assert printed.endswith("lower model.lr\n")
    assert summary(tmp_path)["exit"] == "error"


def test_optimizer_follows_one_cycle(
    p: Project,
    tmp_path: Path,
) -> None:
    p.run(
        tmp_path,
        "--optimizer=SGD",
        "--optimizer.lr=0.02",
        "--optimizer.momentum=0.9",
    )
    rates = column(tmp_path, "lr")
    assert rates[0] == pytest.approx(0.002)
    assert max(rates) == pytest.approx(0.02, rel=0.01)
    assert rates[-1] < 1e-6


def test_schedule_advances_with_each_step(
    p: Project,
    tmp_path: Path,
) -> None:
    schedule = [
        "--lr_scheduler=CyclicLR",
        "--lr_scheduler.base_lr=0.1",
        "--lr_scheduler.max_lr=0.3",
        "--lr_scheduler.step_size_up=2",
        *accumulate(2, validate_every=6),
    ]
    p.run(tmp_path, "--optimizer=SGD", *schedule)
    rates = column(tmp_path, "lr")
    assert rates == pytest.approx([0.1, 0.2, 0.3, 0.2, 0.1, 0.2])


def test_schedule_without_an_optimizer_is_one_line(
    p: Project,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as ended:
        p.run(tmp_path, "--lr_scheduler=CosineAnnealingLR", "--lr_scheduler.T_max=4")
    assert ended.value.code == 1
    printed = capsys.readouterr().err
    assert "without --optimizer" in printed.splitlines()[-1]


def test_options_of_the_model_and_the_data(
    p: Project,
    tmp_path: Path,
) -> None:
    options = [
        "--model.compile_mode=default",
        "--model.size=wide",
        "--data.num_workers=2",
        "--data.timeout=99",
    ]
    seen = mock.patch.object(torch.accelerator, "is_available", return_value=True)
    with mock.patch.object(p.model.MLP, "compile") as compiled, seen:
        cli = p.run(tmp_path, *options)
    compiled.assert_called_once_with(dynamic=False, mode="default")
    options_of_net = cli.config["fit"]["model"]
    assert options_of_net["width"] == p.model.SIZES["wide"]["width"]
    loader = cli.trainer.train_dataloader
    assert (loader.num_workers, loader.timeout) == (2, 99)
    assert not loader.pin_memory, "it trains on the CPU, although the machine has a GPU"


@pytest.mark.test_all
def test_channels_last_keeps_activations_in_nhwc(
    lightning: LightningProject, tmp_path: Path
) -> None:
    convolve = nn.Conv2d.forward

    def check(
        layer: Any,
        inputs: torch.Tensor,
    ) -> torch.Tensor:
        outputs = convolve(layer, inputs)
        assert outputs.is_contiguous(memory_format=torch.channels_last)
        return outputs

    options = ["--trainer.max_steps=3", "--trainer.limit_val_batches=1"]
    with mock.patch.object(nn.Conv2d, "forward", check):
        lightning("resnet").run(tmp_path, "--model.channels_last=true", *options)


def test_two_devices_are_started_by_lightning(
    p: Project,
    tmp_path: Path,
) -> None:
    """SyncBatchNorm refuses a CPU, which shows that it is there."""
    options = ["--trainer.devices=2", "--trainer.strategy=ddp", "--trainer.sync_batchnorm=true"]
    printed = p.finish(
        tmp_path,
        *options,
        ranks=2,
        expect=1,
    )
    assert "SyncBatchNorm layers only work with GPU modules" in printed


def test_rank_that_never_joins_is_missed(
    p: Project, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    one_of_two_ranks(monkeypatch, p.errors)
    with pytest.raises(SystemExit) as ended:
        p.run(tmp_path)
    assert ended.value.code == 1
    assert "error: not all of 2 ranks have joined (" in capsys.readouterr().err


def test_rank_that_ends_while_it_reads_the_data_is_an_error(
    p: Project, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its launcher would let the others wait for it, as a status of 0 is no error."""
    monkeypatch.setattr(p.data, "load", lambda *_: sys.exit())
    with pytest.raises(SystemExit) as ended:
        p.run(tmp_path)
    assert not ended.value.code, "without other ranks"
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("NODE_RANK", "0")  # as Lightning sets it
    with pytest.raises(SystemExit) as ended:
        p.run(tmp_path)
    assert ended.value.code == 1
    assert "error: this rank ends before it has joined the others" in capsys.readouterr().err


def test_ranks_with_other_metrics_are_refused(p: Project) -> None:
    """They would wait for each other."""
    module = SimpleNamespace(mean_over_ranks=lambda number: number / 2)
    means = p.metrics.Means()
    means.update({"iou": (1.0, 2), "loss": (1.0, 2)})
    means.update({"loss": (1.0, 2)})
    with pytest.raises(p.errors.UserError, match="metrics of this rank are iou, loss, and other"):
        p.module.Model.log_means(module, "train", means)


def test_rows_are_right_if_the_next_step_overwrites_the_outputs_of_the_model(
    p: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ["--trainer.log_every_n_steps=3", "--trainer.accumulate_grad_batches=2"]
    p.run(tmp_path / "kept", *options)
    monkeypatch.setattr(p.module, "build", overwriting(p.model.build))
    p.run(tmp_path / "overwritten", *options)
    for split in ("train", "val"):
        kept = rows(tmp_path / "kept", split)
        assert rows(tmp_path / "overwritten", split) == kept


def read_means(
    rank: int,
    metrics: Any,
    store: Path,
) -> None:
    """Check the means of two ranks, in one of them."""
    torch.set_num_threads(1)  # a fork has none of the threads that OpenMP has started before
    distributed.init_process_group(
        "gloo",
        f"file://{store}",
        rank=rank,
        world_size=2,
    )
    means = metrics.Means()
    sums = torch.tensor([3.0, 2.0, 0.0]) * (rank + 1)
    counts = torch.tensor([4, 1, 0])
    for _ in range(2):
        means.update({"loss": (sums.sum(), 7), "iou": (sums, counts)})
    row = means.compute()
    assert row["loss"].item() == (10 + 20) / 28
    assert row["iou"].item() == (18 / 16 + 12 / 4) / 2, "two classes have a count"
    training = metrics.Means(loss_of_none=0.0)
    training.update({"loss": (torch.tensor(0.0), 0), "recall": (0, 0)})
    assert training.compute()["loss"] == 0
    assert training.compute()["recall"].isnan()
    training.update({"iou": (torch.tensor([1.0, math.nan]), torch.tensor([1, 1]))})
    assert training.compute()["iou"].isnan(), "NaN is no class without a count"
    distributed.destroy_process_group()


def test_means_of_two_ranks_are_exact_for_each_class(
    p: Project,
    tmp_path: Path,
) -> None:
    start_processes(
        read_means,
        (p.metrics, tmp_path / "store"),
        nprocs=2,
        start_method="fork",
    )


def test_section_that_stands_twice_is_one_line(
    p: Project,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = tmp_path / "twice.yaml"
    file.write_text("data: {batch_size: 8}\ntrainer: {max_steps: 1}\ndata: {seed: 1}\n")
    for words in (["--config", str(file)], [f"--config={file}"]):
        with pytest.raises(SystemExit):
            p.run(tmp_path, *words)
        assert capsys.readouterr().err == (
            f"error: data stands twice in {file}, in lines 1 and 3: keep one\n"
        )


def save(file: Path, checkpoint: dict[str, Any]) -> str:
    """Save a checkpoint; return its option."""
    torch.save(checkpoint, file)
    return f"--ckpt_path={file}"


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--data.batch_size=0", "data.batch_size is 0: it must be in [1, inf)"),
        ("--data.batch_size=100000", "lower data.batch_size"),
        ("--model.width=null", "model.width needs a value, not null"),
        ("--data.path=~", "data.path is ~, which YAML reads as null"),
        ("--data.path=#x", "data.path is #x, which YAML reads as null"),
        ("--model.pct_start=2", "model.pct_start is 2.0: it must be in (0, 1)"),
        ("--model.lrr=1", "--model.lrr; see fit --help. Did you mean --model.lr?"),
        ("--model.size=huge", "model.size is huge: it must be small"),
        ("--trainer.max_steps=-1", "no last step: set trainer.max_steps or trainer.max_epochs"),
        ("--trainer.max_steps=0", "trainer.max_steps and trainer.max_epochs must not be 0"),
        ("--trainer.devices=0", "devices"),
        ("--trainer.accelerator=gpuu", "invalid accelerator name"),
        ("--trainer.log_every_n_steps=0", "it must be in [1, inf)"),
        ("--trainer.logger.version=..", "trainer.logger.version is ..: it must be the name"),
        ("--seed_everything=-1", "seed_everything is -1"),
    ],
)
def test_wrong_option_is_one_line(
    p: Project,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    option: str,
    message: str,
) -> None:
    with pytest.raises(SystemExit) as ended:
        p.run(tmp_path, option)
    assert ended.value.code == 1
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "error: " in line]
    assert message in line


def test_more_batches_between_validations_than_in_an_epoch_are_one_line(
    p: Project,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    options = ("--trainer.val_check_interval=999", "--trainer.check_val_every_n_epoch=1")
    with pytest.raises(SystemExit):
        p.run(tmp_path, *options)
    assert "error: `val_check_interval` (999) must be less than" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("model: [", "cannot read"),
        ("model: 3", "model is 3 in"),
        ("model: {lr: null}", "model.lr needs a value, not null"),
        ("model: {lr: 1:30}", "model.lr is 1:30, which YAML reads as a number of seconds"),
        ("model: {lr: ''}", "model.lr is empty: it must be a number"),
        ("model: {compile_mode: off}", 'max-autotune-no-cudagraphs; quote "off"'),
        ("data: {ignore: [No, a]}", "data.ignore has False, which must be text: quote it"),
        ("data: {path: 2024}", "data.path is 2024: it must be a path, in quotes or null"),
        ("modle: {lr: 1}", "--modle.lr; see fit --help. Did you mean --model.lr?"),
    ],
)
def test_wrong_file_is_one_line(
    p: Project,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    text: str,
    message: str,
) -> None:
    file = tmp_path / "wrong.yaml"
    file.write_text(text)
    with pytest.raises(SystemExit):
        p.run(tmp_path, f"--config={file}")
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line


def test_empty_files_and_sections_have_no_effect(p: Project, tmp_path: Path) -> None:
    options = []
    texts = ("", "# later", "data:", "model:\ndata:\n", "data:\nmodel: {lr: 0.2}", "trainer: {}")
    for index, text in enumerate(texts):
        file = tmp_path / f"{index}.yaml"
        file.write_text(text)
        options.append(f"--config={file}")
    assert p.run(tmp_path, *options).config["fit"]["model"]["lr"] == 0.2


def test_options_of_the_command_line_override_files_after_them(p: Project, tmp_path: Path) -> None:
    file = tmp_path / "own.yaml"
    file.write_text("model: {lr: 0.2, beta2: 0.9}\ntrainer: {max_steps: 4}")
    words = ["--model.lr=0.1", "--trainer.max_epochs=1", "--trainer.limit_train_batches=5"]
    cli = p.run(tmp_path, *words, "-c", str(file))
    model = cli.config["fit"]["model"]
    assert (model["lr"], model["beta2"]) == (0.1, 0.9)
    assert cli.trainer.global_step == 5, "one epoch, and not the 4 steps of the file"


@pytest.mark.parametrize("words", [["-c", "a"], ["-c=a"], ["-ca"]])
def test_the_short_form_of_config_is_read_first(p: Project, words: list[str]) -> None:
    first, *_, last = p.train.command_line_last(["fit", "--model.lr=0.1", *words])
    assert (first, last) == ("fit", "--model.lr=0.1")


@pytest.mark.parametrize("value", ["-1", "null"])
def test_a_limit_that_is_none_leaves_that_of_the_file(p: Project, value: str) -> None:
    words = ["fit", f"--trainer.max_epochs={value}", "--config=a.yaml"]
    assert p.train.command_line_last(words) == ["fit", "--config=a.yaml", words[1]]


def test_foreign_checkpoint_is_one_line(
    p: Project,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = tmp_path / "text.ckpt"
    text.write_text("hello")
    foreign = save(tmp_path / "foreign.ckpt", {"state_dict": {}})
    for option, message in ((foreign, "no checkpoint of this"), (f"--ckpt_path={text}", "damaged")):
        with pytest.raises(SystemExit):
            p.run(tmp_path, option)
        (line,) = capsys.readouterr().err.splitlines()
        assert message in line
    p.run(tmp_path)
    last = f"--ckpt_path={tmp_path}/a/checkpoints/last.ckpt"
    with pytest.raises(SystemExit):
        p.run(
            tmp_path,
            last,
            "--model.width=16",
            command="validate",
        )
    assert capsys.readouterr().err.endswith("other weights than model.py\n")
