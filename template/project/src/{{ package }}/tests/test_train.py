"""Complete runs: the loss decreases, a resumed run is bit-identical, and errors are one line."""

import re
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from .. import checkpoint, data, model
from .. import train as framework
from ..config import Config, parse
from ..contracts import blocks_of
from ..distributed import World
from ..errors import UserError
from ..log import RunLog
from ..techniques import fp8
from ..tools import report
from ..train import train
from .conftest import (
    NO_COMPILE,
    OTHER_WIDTH,
    SMALL,
    evaluate_run,
    main,
    read_losses,
    read_rows,
    read_weights,
    run_ranks,
)
from .terminal import terminal


def test_loss_decreases_and_files_are_written(
    config: Callable[..., Config], world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = train(config("--run.name=a", "--train.steps=60", "--train.micro_batch=32"), world)
    losses = [row["loss"] for row in read_rows(tmp_path / "a", "train")]
    assert losses[-1] < 0.85 * losses[0]
    assert read_rows(tmp_path / "a", "val")[-1]["loss"] == results["loss"]
    assert "validation  " in capsys.readouterr().out
    assert Config(run=config(f"--config={tmp_path}/a/config.json").run).run.name == "a"

    found = evaluate_run(tmp_path / "a")
    printed = capsys.readouterr().out
    assert f"loss            {results['loss']:.6g}" in printed
    assert re.search(r"^evaluation.json and evaluation.png in .*a/checkpoints/step-00000060$", printed, re.MULTILINE)
    assert {name: found[name] for name in results} == pytest.approx(results, rel=1e-5)
    report.main([str(tmp_path / "a")])
    assert (tmp_path / "a" / "report.png").stat().st_size > 10_000


@pytest.mark.parametrize("workers", [0, 1])
def test_resume_is_bit_identical(config: Callable[..., Config], world: World, tmp_path: Path, workers: int) -> None:
    options = ["--train.eval_every=4", "--log.every=2", "--train.steps=12", "--run.seed=3"]
    options.append(f"--loader.workers={workers}")
    train(config("--run.name=whole", *options), world)
    train(config("--run.name=cut", *options), world)
    cut = tmp_path / "cut"
    names = [path.name for path in checkpoint.all_checkpoints(cut / "checkpoints")]
    assert names[-2:] == ["step-00000008", "step-00000012"]
    assert len(names) <= 3, "the two newest, and the best"
    (cut / "checkpoints" / "step-00000012" / "manifest.json").unlink()  # as if the run had been killed before
    with pytest.warns(UserWarning, match="skipping"):
        train(config("--run.name=cut", "--run.resume=auto", *options), world)
    for split in ("train", "val"):
        assert read_rows(cut, split) == read_rows(tmp_path / "whole", split)
    ours, theirs = read_weights(cut, 12), read_weights(tmp_path / "whole", 12)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_resume_from_an_older_checkpoint_sets_newer_ones_aside(
    config: Callable[..., Config], world: World, tmp_path: Path
) -> None:
    options = ["--train.eval_every=2", "--train.steps=4", "--run.name=a"]
    train(config(*options), world)
    checkpoints = tmp_path / "a" / "checkpoints"
    changed = [
        "--train.steps=3",
        "--optim.weight_decay=0.7",
        "--run.processes=2",
        f"--run.resume={checkpoints}/step-00000002",
    ]
    train(config(*options, *changed), world)
    names = sorted(path.name for path in checkpoints.iterdir() if path.is_dir())
    assert names == ["abandoned-step-00000004", "step-00000002", "step-00000003"]
    assert [row["step"] for row in read_rows(tmp_path / "a", "val")] == [2, 3]
    groups = checkpoint.read_state(checkpoints / "step-00000003")["optimizer"]["param_groups"]
    assert groups[0]["weight_decay"] == 0.7
    for state in checkpoints.glob("step-*/state.pt"):
        state.write_bytes(b"")
    with pytest.warns(UserWarning, match="skipping the damaged checkpoint"):
        train(config("--run.name=a", "--train.steps=2", "--checkpoint.keep=1", "--run.resume=auto"), world)
    names = sorted(path.name for path in checkpoints.iterdir() if path.is_dir())
    assert names == [f"abandoned-step-0000000{step}" for step in (2, 3, 4)] + ["step-00000002"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("--run.seed=9", "run.seed is 0 there and 9 here"),
        ("--train.micro_batch=8", "global batch is 16 there and 8 here"),
        pytest.param(
            OTHER_WIDTH, "model", marks=pytest.mark.skipif(OTHER_WIDTH[-2:] == "=0", reason="no such key here")
        ),
    ],
)
def test_resume_of_a_different_run_is_refused(
    config: Callable[..., Config], world: World, tmp_path: Path, change: str, message: str
) -> None:
    train(config("--run.name=a", "--train.steps=2"), world)
    with pytest.raises(SystemExit) as stop:
        main([*SMALL, f"--run.dir={tmp_path}", "--run.name=a", "--run.resume=auto", change])
    assert message in str(stop.value)
    assert "\n" not in str(stop.value)
    assert config(f"--config={tmp_path}/a/config.json").run.seed == 0, "the run's own config is not overwritten"
    other = (
        r"a has a run with other settings \(optim.lr is .* there and 0.5 here\): give another --run.name, or continue"
    )
    with pytest.raises(SystemExit, match=other):
        main([*SMALL, f"--run.dir={tmp_path}", "--run.name=a", "--train.steps=2", "--optim.lr=0.5", "--log.every=3"])


def test_run_without_a_checkpoint_does_not_block_its_name(
    config: Callable[..., Config], world: World, tmp_path: Path, short_validation: None
) -> None:
    """Its rows are kept, apart from those of the new run. A folder that is no run's is not touched."""
    options = ["--run.name=a", "--train.steps=2", "--log.every=1"]
    (tmp_path / "a").mkdir()
    for number in (1, 2):
        train(config(*options), world)
        assert len(read_losses(tmp_path / "a")) == 2
        shutil.rmtree(tmp_path / "a/checkpoints")
        (tmp_path / "a/checkpoints/.step-00000002.partial").mkdir(parents=True)
        assert len(list((tmp_path / "a").glob("unfinished-*"))) == number - 1
    (tmp_path / "a/metrics.jsonl").write_text("")  # a run that ended before its first row leaves nothing to keep
    train(config(*options), world)
    assert len(read_losses(tmp_path / "a")) == 2
    assert len(read_losses(tmp_path / "a/unfinished-1")) == 2
    assert not (tmp_path / "a/unfinished-2").exists()
    (tmp_path / "b").mkdir()
    (tmp_path / "b/config.json").write_text("{}")
    with pytest.raises(UserError, match="b exists: resume it with --run.resume auto, or give another"):
        train(config(*options, "--run.name=b"), world)
    assert [path.name for path in (tmp_path / "b").iterdir()] == ["config.json"]


KNOWN = [
    r"(device|precision|parameters|samples|batch|steps|run|resumed) {2,}\S.*",
    r"(validation|best|time|files) +\S.*",
    r"stopped at step 1[0-2] \(SIGINT\); continue with --run.resume auto",
    r" {12}\S.*",
    r" {7,}epoch +step +loss +\w+ +lr +\w+/s",
    r"train +[\d.]+ +\d+/16( +[\d.,e+-]+){4}",
    r"val +[\d.]+ +\d+/16( +[\d.e+-]+){2}",
    "a line of another program",
]
"""Lines that a run prints."""


def test_terminal_shows_whole_lines_of_an_interrupted_and_a_resumed_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, short_validation: None
) -> None:
    monkeypatch.chdir(tmp_path)
    step = RunLog.step
    options = [*SMALL, "--log.tensorboard=false", "--run.dir=runs", "--run.name=a", "--run.resume=auto"]
    options += ["--train.steps=16", "--train.eval_every=4", "--log.every=3"]

    def interrupt(self: RunLog) -> None:
        step(self)
        monkeypatch.setattr(RunLog, "step", step)
        print("a line of another program", file=sys.stderr)
        self.console.bar.bar.fp.write("^C")  # as a terminal does
        signal.raise_signal(signal.SIGINT)

    def wait(self: RunLog) -> None:
        step(self)
        time.sleep(0.02)  # so that the progress bar is drawn
        if self.console.train_row.split()[2:3] == ["8/16"]:
            monkeypatch.setattr(RunLog, "step", interrupt)

    monkeypatch.setattr(RunLog, "step", wait)
    with terminal() as first, pytest.raises(SystemExit) as stop:
        main(options)
    assert stop.value.code == 75
    with terminal() as second:
        main(options)
    for lines in (first, second):
        strange = [line for line in lines[:-1] if not any(re.fullmatch(known, line) for known in KNOWN)]
        assert strange == []
        assert lines[-1] == "", "the cursor is below"
    steps = [line.split()[2] for line in first + second if line.startswith("val ")]
    assert steps == ["4/16", "8/16", "12/16", "16/16"]
    assert re.search(r"resumed +at step 1[0-2], from runs/a/checkpoints/step-0000001[0-2]", "\n".join(second))
    assert [line.split()[0] for line in second[-5:-1]] == ["validation", "best", "time", "files"]


def test_non_finite_loss_stops_the_run_unsaved(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="at step"):
        main(
            [
                *SMALL,
                f"--run.dir={tmp_path}",
                "--run.name=a",
                "--optim.lr=1e30",
                "--optim.clip=null",
                "--optim.div_factor=1",
            ]
        )
    assert checkpoint.find(tmp_path / "a") is None


def test_error_on_ranks_is_reported_once_and_ends_them(tmp_path: Path) -> None:
    done = run_ranks(2, [f"--run.dir={tmp_path}", "--train.global_batch=40"])
    assert done.returncode == 1
    why = "it must be a multiple of 2 ranks x train.micro_batch=16; the nearest is 32 or 64"
    assert done.stderr == f"error: train.global_batch is 40: {why}\n", "nothing from the other rank"
    assert [line.partition(" ")[0] for line in done.stdout.splitlines()] == ["starting:"]


def lacking(kind: str) -> set[str]:
    """Return the formats that this machine's GPU does not have."""
    if kind == "xpu" and not torch.xpu.get_device_properties().has_fp64:
        return {"tf32", "fp8", "fp16"}
    if kind != "cuda":
        return {"tf32", "fp8"}
    capability, amd = torch.cuda.get_device_capability(), bool(torch.version.hip)
    least = {"tf32": (8, 0), "bf16": (8, 0), "fp8": (8, 9)}
    return {name for name in least if capability < least[name] or (amd and name == "fp8")}


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores")  # a warning for fp32
@pytest.mark.parametrize("precision", ["bf16", "fp16", "tf32", "fp32", "fp8"])
def test_model_trains_on_gpu(tmp_path: Path, precision: str) -> None:
    kind = torch.accelerator.current_accelerator().type  # type: ignore[union-attr]
    compiled = "off" if NO_COMPILE or kind == "mps" else "model"
    options = [
        "--run.device=accelerator",
        f"--speed.precision={precision}",
        f"--speed.compile={compiled}",
        "--run.name=a",
    ]
    command = [*SMALL, f"--run.dir={tmp_path}", *options, "--loader.workers=1", "--train.steps=40"]
    if kind == "xpu" and hasattr(framework, "lightning"):
        with pytest.raises(SystemExit, match="Lightning has no accelerator for Intel GPUs"):
            main(command)
        return
    if precision in lacking(kind):
        with pytest.raises(SystemExit, match=f"speed.precision is {precision}: this run is on {kind}"):
            main(command)
        return
    cfg = parse("test", "", command)
    blocks = blocks_of(model.build(cfg.model, data.load(cfg.data).spec))
    if precision == "fp8" and not any(fp8.fits(layer, "") for layer in blocks.modules()):
        with pytest.raises(SystemExit, match="speed.precision=fp8 needs linear layers"):
            main(command)
        return
    main(command)
    full = "ieee" if precision == "fp32" else "tf32"
    assert kind != "cuda" or torch.backends.cuda.matmul.fp32_precision == full
    losses = [row["loss"] for row in read_rows(tmp_path / "a", "train")]
    assert losses[-1] < 0.9 * losses[0]
