"""Complete runs: the loss decreases, a resumed run is bit-identical, and errors are one line."""

import copy
import errno
import os
import re
import shutil
import signal
import sys
import time
from collections.abc import Callable
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_leaves

from .. import checkpoint, data, model
from .. import train as framework
from ..config import Config, parse
from ..contracts import blocks_of
from ..distributed import World
from ..errors import UserError
from ..faults import interval, saving
from ..log import RunLog
from ..metrics import Meter
from ..run_lock import locked
from ..techniques import _model, fp8
from ..tools import report
from ..tools.trained_model import open_trained
from ..train import train
from .conftest import (
    IN_TURN,
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


@pytest.mark.fast
@pytest.mark.usefixtures("short_validation")
def test_loss_decreases_and_files_are_written(
    config: Callable[..., Config], world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = train(config("--run.name=a", "--train.steps=60", "--train.micro_batch=32"), world)
    losses = [row["loss"] for row in read_rows(tmp_path / "a", "train")]
    assert losses[-1] < 0.85 * losses[0] or IN_TURN
    assert read_rows(tmp_path / "a", "val")[-1]["loss"] == results["loss"]
    assert "validation  " in capsys.readouterr().out
    assert Config(run=config(f"--config={tmp_path}/a/config.json").run).run.name == "a"

    found = evaluate_run(tmp_path / "a")
    printed = capsys.readouterr().out
    assert f"loss            {results['loss']:.6g}" in printed
    assert re.search(r"^evaluation.json( and evaluation.png)? in .*a/checkpoints/step-00000060$", printed, re.MULTILINE)
    assert {name: found[name] for name in results} == pytest.approx(results, rel=1e-5)
    report.main([str(tmp_path / "a")])
    assert (tmp_path / "a" / "report.png").stat().st_size > 10_000


@pytest.mark.usefixtures("short_validation")
@pytest.mark.parametrize("workers", [pytest.param(0, marks=pytest.mark.fast), 1])
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


def test_checkpoint_of_a_read_only_disk_is_continued_elsewhere(
    config: Callable[..., Config], world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a new run, which has the rows so far and the best checkpoint, and the same end."""
    options = ["--train.eval_every=2", "--train.steps=6", "--checkpoint.keep=9"]
    train(config(*options, "--run.name=a"), world)
    source = tmp_path / "a"
    (source / "checkpoints/best").write_text("step-00000002\n")
    opened = Path.open

    def refuse(path: Path, mode: str = "r", *others: Any, **named: Any) -> Any:
        if "r" not in mode and path.is_relative_to(source):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
        return opened(path, mode, *others, **named)

    monkeypatch.setattr(Path, "open", refuse)
    before = {path: path.stat().st_mtime_ns for path in source.rglob("*")}
    middle = f"--run.resume={source}/checkpoints/step-00000004"
    with pytest.raises(UserError, match=r"a \(Read-only file system\): continue it in a new one with --run.name"):
        train(config(*options, middle), world)
    train(config(*options, middle, "--run.name=b"), world)
    assert {path: path.stat().st_mtime_ns for path in source.rglob("*")} == before
    names = sorted(path.name for path in (tmp_path / "b/checkpoints").iterdir())
    assert names == ["best", *(f"step-0000000{step}" for step in (2, 4, 6))]
    for split in ("train", "val"):
        assert read_rows(tmp_path / "b", split) == read_rows(source, split)
    ours, theirs = read_weights(tmp_path / "b", 6), read_weights(source, 6)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    (tmp_path / "b/checkpoints/step-00000006").rename(tmp_path / "set aside")
    train(config(*options, middle, "--run.name=b"), world)  # the same command continues it
    assert read_rows(tmp_path / "b", "val") == read_rows(source, "val")
    with pytest.raises(UserError, match="b exists: resume it with --run.resume auto, or give another --run.name"):
        train(config(*options, f"--run.resume={source}/checkpoints/step-00000002", "--run.name=b"), world)
    shutil.copytree(source / "checkpoints/step-00000004", tmp_path / "alone")
    train(config(*options, f"--run.resume={tmp_path}/alone"), world)
    assert len(list(tmp_path.glob("*/checkpoints/step-00000006"))) == 3, "the third is named by its date"


def test_run_is_locked_before_its_newest_checkpoint_is_looked_for(
    config: Callable[..., Config], world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise, another process could save a newer one in between."""
    options = ["--train.steps=4", "--train.eval_every=2", "--run.name=a", "--run.resume=auto"]
    train(config(*options), world)
    with locked(tmp_path / "a"), monkeypatch.context() as patch:
        patch.setattr(checkpoint, "find", None)
        with pytest.raises(UserError, match="is in use by this process"):
            train(config(*options), world)
    find = checkpoint.find

    def late(path: Path) -> Path | None:
        found = find(path)
        (tmp_path / "c").rename(tmp_path / "b")  # another process begins and ends
        return found

    shutil.copytree(tmp_path / "a", tmp_path / "c")
    monkeypatch.setattr(checkpoint, "find", late)
    with pytest.raises(UserError, match="another process has just saved a checkpoint in .*b: start again"):
        train(config(*options[:2], "--run.name=b", "--run.resume=auto"), world)
    assert checkpoint.best_of(tmp_path / "b/checkpoints") is not None


def test_disk_space_is_compared_with_what_the_run_keeps(
    config: Callable[..., Config], world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The estimate of a checkpoint is the size of its tensors."""
    options = ["--train.steps=1", "--train.ema=0.9", "--run.name=a"]
    train(config(*options), world)
    state = checkpoint.read_state(tmp_path / "a/checkpoints/step-00000001")
    size = sum(leaf.nbytes for leaf in tree_leaves(state) if isinstance(leaf, torch.Tensor))

    def free(part: float) -> None:
        usage = SimpleNamespace(free=part * size)
        monkeypatch.setattr("shutil.disk_usage", lambda path: usage if Path(path) == tmp_path else None)

    free(0.7)
    with pytest.raises(UserError, match=r"has .* MiB free, and a checkpoint takes .* MiB: free some space, or give"):
        train(config(*options[:2], "--run.name=b"), world)
    assert not (tmp_path / "b").exists()
    free(2)
    with pytest.warns(UserWarning, match="free, and the run will need up to .* MiB for checkpoints: free some space"):
        train(config(*options[:2], "--run.name=b"), world)
    free(4)
    train(config(*options[:2], "--run.name=c"), world)


STRUCTURES: dict[str, Callable[[dict[str, Any]], object]] = {
    "no weights": lambda state: state.pop("model"),
    "weights of a list": lambda state: state.update(model=[1, 2]),
    "a weight of text": lambda state: state["model"].update({next(iter(state["model"])): "x"}),
    "no optimizer": lambda state: state.pop("optimizer"),
    "an optimizer of None": lambda state: state.update(optimizer=None),
    "optimizer state of a list": lambda state: state["optimizer"].update(state=[1]),
    "no step": lambda state: state.pop("step"),
    "a step of text": lambda state: state.update(step="x"),
    "a best of a number": lambda state: state.update(best=3),
}


def test_state_of_another_structure_is_refused_in_one_line(
    config: Callable[..., Config], world: World, tmp_path: Path
) -> None:
    train(config("--run.name=a", "--train.steps=2"), world)
    found = tmp_path / "a/checkpoints/step-00000002"
    whole, manifest = checkpoint.read_state(found), checkpoint.read_manifest(found)
    for name, change in STRUCTURES.items():
        state = copy.deepcopy(whole)
        change(state)
        manifest["files"] = {"state.pt": saving.write(found / "state.pt", state)}
        (found / "manifest.json").write_text(saving.sealed(manifest))
        with pytest.raises(UserError, match="has another structure|is of another model") as refusal:
            train(config("--run.name=a", "--train.steps=2", "--run.resume=auto"), world)
        assert "\n" not in str(refusal.value), name
        if "weight" in name:
            with pytest.raises(UserError, match="has another structure|is of another model"):
                open_trained(tmp_path / "a", world.device)
    with pytest.raises(UserError, match="has another structure"):
        interval.restore({"row": {"loss": "x"}}, Meter(world), torch.nn.Linear(1, 1), (), world)


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
    with pytest.raises(UserError, match="b exists, and is not of a run: give another --run.name"):
        train(config(*options, "--run.name=b"), world)
    assert [path.name for path in (tmp_path / "b").iterdir()] == ["config.json"]


def test_log_that_cannot_be_written_is_refused(config: Callable[..., Config], world: World, tmp_path: Path) -> None:
    (tmp_path / "a/metrics.jsonl").mkdir(parents=True)
    options = ["--run.name=a", "--run.resume=auto", "--train.steps=2"]
    with pytest.raises(UserError, match=r"cannot write .*metrics.jsonl \(.+\): move it away, or make it writable"):
        train(config(*options), world)


KNOWN = [
    r"(device|precision|parameters|optimizer|loading|samples|batch|steps|run|resumed) {2,}\S.*",
    r"(validation|best|time|files) +\S.*",
    r"stopped at step 1[0-2] \(SIGINT\); continue with --run.resume auto",
    r" {12}\S.*",
    r" {7,}epoch +step +loss +\w+ +lr +\w+/s",
    r"train +[\d.]+ +\d+/16( +[\d.,e+-]+){4}",
    r"val +[\d.]+ +\d+/16( +[\d.e+-]+){1,2}",
    "a line of another program",
]
"""Lines that a run prints."""


def build_without_output(cfg: Any, spec: Any) -> Any:
    """Build the model, and drop what it prints, then and in its forward pass."""
    with redirect_stdout(StringIO()):
        net: Any = model.build(cfg, spec)
    forward = net.forward

    def quiet(*batch: Any) -> Any:
        with redirect_stdout(StringIO()):
            print("a model that prints")
            return forward(*batch)

    net.forward = quiet
    return net


def test_terminal_shows_whole_lines_of_an_interrupted_and_a_resumed_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, short_validation: None
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(_model, "build", build_without_output)
    step = RunLog.step
    options = [*SMALL, "--run.dir=runs", "--run.name=a", "--run.resume=auto"]
    options += ["--train.steps=16", "--train.eval_every=4", "--log.every=3"]

    def interrupt(self: RunLog) -> None:
        step(self)
        monkeypatch.setattr(RunLog, "step", step)
        self.console.bar.bar.fp.write("^C")  # as a terminal does
        print("a line of another program", file=sys.stderr)
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
    assert fall(tmp_path / "a") > 0.5 * fall_on_cpu(tmp_path) > 0, "random numbers differ, but not by that much"


def fall(run: Path) -> float:
    """Return by how much the training loss fell."""
    losses: list[float] = [row["loss"] for row in read_rows(run, "train")]
    return losses[0] - losses[-1]


def fall_on_cpu(folder: Path) -> float:
    """Return by how much it falls in the same steps on the CPU, from the same weights."""
    options = ["--run.device=cpu", "--speed.precision=fp32", "--speed.compile=off", "--run.name=cpu"]
    main([*SMALL, f"--run.dir={folder}", *options, "--train.steps=40"])
    return fall(folder / "cpu")
