"""A Lightning run that was killed, or stopped by SLURM, and resumed; checkpoints with code."""

import dataclasses
import json
import os
import random
import shutil
import signal
import time
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from unittest import mock

import pytest
import torch
from engine import equal, summary, times, trained_elsewhere
from lightning_runs import IGNORED, LightningProject, Project, column, rows, saved
from matrix import EVERY
from warm import run_python

pytestmark = IGNORED
STEPS = ["--trainer.max_steps=120", "--trainer.val_check_interval=30"]


@pytest.fixture(scope="session")
def p(lightning: LightningProject) -> Project:
    return lightning("mlp")


@pytest.fixture(scope="session")
def whole(
    p: Project,
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    """A run of 120 steps without a stop."""
    folder = tmp_path_factory.mktemp("whole")
    p.finish(folder, *STEPS, every=7)
    return folder


KILL = """
import os, signal, sys, threading
from {0} import module, train
step = int(sys.argv.pop(1))
delay = float(sys.argv.pop(1))
def kill_later(model, *given):
    if model.global_step == step:
        threading.Timer(delay, os.kill, (os.getpid(), signal.SIGKILL)).start()
module.Model.on_train_batch_start = kill_later
train.main()
"""
"""Arguments are a step, the seconds from its start to SIGKILL, and those of training."""


def lines(folder: Path) -> int:
    file = folder / "a/metrics.jsonl"
    return len(file.read_bytes().splitlines()) if file.exists() else 0


@pytest.mark.slow
def test_kill_at_random_moments_changes_nothing(
    p: Project,
    tmp_path: Path,
    whole: Path,
) -> None:
    rng = random.Random(3)  # noqa: S311
    program = tmp_path / "program.py"
    program.write_text(KILL.format(p.name))
    arguments = p.arguments(
        tmp_path,
        *STEPS,
        "--ckpt_path=last",
        every=7,
    )
    for part in range(1, 7 if EVERY else 3):
        moment = [str(14 * part + rng.randrange(14)), str(0.03 * rng.random())]
        run_python(
            p.root,
            str(program),
            *moment,
            *arguments,
            status=-signal.SIGKILL,
        )
    printed = p.finish(
        tmp_path,
        *STEPS,
        "--ckpt_path=last",
        every=7,
    )
    assert "Restored all states" in printed
    assert equal(saved(tmp_path), saved(whole))
    assert rows(tmp_path) == rows(whole)
    assert rows(tmp_path, "val") == rows(whole, "val")
    assert times(tmp_path) == sorted(times(tmp_path)), "they go on when a run is resumed"


@pytest.fixture
def slurm(tmp_path: Path) -> dict[str, Any]:
    """The environment of a task that srun has started, and an scontrol that notes its options."""
    (tmp_path / "scontrol").write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/requeued\n')
    (tmp_path / "scontrol").chmod(0o755)
    return {
        "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}",
        "SLURM_JOB_ID": "17",
        "SLURM_JOB_NAME": "train",
        "SLURM_NTASKS": "1",
        "SLURM_PROCID": "0",
        "SLURM_LOCALID": "0",
        "SLURM_NODEID": "0",
    }


@pytest.mark.test_all
@pytest.mark.slow
def test_requeued_job_of_slurm_continues(
    p: Project, tmp_path: Path, whole: Path, slurm: dict[str, Any]
) -> None:
    """SIGUSR1 comes between two steps here.

    Lightning saves at once, so in a step, that step is lost or repeated.
    """
    p = Project(shutil.copytree(p.root, tmp_path / "copy" / p.root.name))
    (p.root / "src/stop.py").write_text(
        "import os, signal\n"
        "from lightning.pytorch import Callback\n"
        "class Stop(Callback):\n"
        "    def on_train_batch_start(self, trainer, *given):\n"
        "        if trainer.global_step == 43 and 'STOP' in os.environ:\n"
        "            os.kill(os.getpid(), signal.SIGUSR1)\n"
        "            os.kill(os.getpid(), signal.SIGKILL)\n"  # after 90 seconds, in a real job
    )
    options = [*STEPS, "--trainer.callbacks+=stop.Stop"]
    p.finish(
        tmp_path,
        *options,
        every=100,
        expect=-signal.SIGKILL,
        STOP="1",
        **slurm,
    )
    assert (tmp_path / "requeued").read_text() == "requeue 17\n"
    assert torch.load(tmp_path / "a/hpc_ckpt_1.ckpt", weights_only=True)["global_step"] == 43
    printed = p.finish(
        tmp_path,
        *options,
        every=7,
        **slurm,
    )
    assert "a/hpc_ckpt_1.ckpt" in printed
    assert equal(saved(tmp_path), saved(whole))
    assert rows(tmp_path) == rows(whole)


@pytest.mark.slow
def test_signals_end_a_run_without_a_checkpoint(
    p: Project,
    tmp_path: Path,
) -> None:
    """Only SLURM's requeue saves one; so `every_n_train_steps` says how many steps are lost."""
    for number, status in ((signal.SIGTERM, 0), (signal.SIGINT, 1)):
        folder = tmp_path / number.name
        steps = ["--trainer.max_steps=100000", "--trainer.val_check_interval=100000"]
        run = p.start(folder, *steps, every=100000)
        while run.running() and lines(folder) < 5:
            time.sleep(0.001)
        run.send(number)
        done = run.finish()
        assert done.returncode == status, done.stderr
        assert not (folder / "a/checkpoints").exists()
        assert summary(folder)["exit"] == "stopped"


def test_a_thread_watches_the_signals_of_a_command(
    p: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So a second one ends it at once; Lightning looks at the first one after a batch."""
    found: list[int] = []
    monkeypatch.setattr(p.train, "run", lambda: found.append(signal.set_wakeup_fd(-1)))
    p.train.main()
    assert found[0] > 0


class Killed(BaseException):
    """Ends a run at once."""


def kill_at(hook: str, step: int) -> Any:
    """Return a patch of the model that ends the run in a hook, before those of callbacks."""

    def kill(model: Any, *given: Any) -> None:
        if model.trainer.global_step == step and not model.trainer.sanity_checking:
            raise Killed

    return mock.patch(f"lightning.pytorch.LightningModule.{hook}", kill)


@pytest.mark.parametrize(
    ("hook", "step"),
    [
        ("on_train_batch_end", 3),
        ("on_validation_start", 3),
        ("on_train_batch_start", 4),
    ],
)
def test_no_row_is_lost_or_doubled_around_a_validation(
    p: Project, tmp_path: Path, hook: str, step: int
) -> None:
    """Steps 3 and 6 validate; Lightning's own ModelCheckpoint saves before that, and skips it."""
    with kill_at(hook, step), pytest.raises(Killed):
        p.run(tmp_path, every=1)
    p.run(tmp_path, "--ckpt_path=last", every=1)
    assert column(tmp_path, "step") == [1, 2, 3, 4, 5, 6]
    assert column(tmp_path, "step", "val") == [3, 6]


@pytest.mark.parametrize("batch", [0, 1, 2])
def test_run_that_is_killed_within_an_accumulation_resumes_to_the_same_end(
    p: Project, tmp_path: Path, capsys: pytest.CaptureFixture[str], batch: int
) -> None:
    """Epochs of five of the batches, so of three steps; the validation after each is kept."""
    options = ["--trainer.limit_train_batches=5", "--trainer.accumulate_grad_batches=2"]
    options += ["--trainer.val_check_interval=1.0", "--trainer.check_val_every_n_epoch=1"]
    options += ["--trainer.max_steps=9", "--data.batch_size=8"]
    p.run(tmp_path / "whole", *options, every=1)

    def kill(
        model: Any,
        outputs: Any,
        loaded: Any,
        batch_idx: int,
    ) -> None:
        if (model.current_epoch, batch_idx) == (1, batch):
            raise Killed

    on_batch_end = "lightning.pytorch.LightningModule.on_train_batch_end"
    with mock.patch(on_batch_end, kill), pytest.raises(Killed):
        p.run(tmp_path, *options, every=1)
    last = torch.load(tmp_path / "a/checkpoints/last.ckpt", weights_only=True)
    scores = []
    for state in last["callbacks"].values():
        if state.get("monitor"):
            scores.append(state["best_model_score"].item())
    assert scores == pytest.approx(column(tmp_path, "loss", "val")[:1]), "kept with its validation"
    message = trained_elsewhere(tmp_path)
    p.run(tmp_path, *options, "--ckpt_path=last", every=1)
    assert message in capsys.readouterr().out
    assert equal(saved(tmp_path)["state_dict"], saved(tmp_path / "whole")["state_dict"])
    assert rows(tmp_path) == rows(tmp_path / "whole")
    assert rows(tmp_path, "val") == rows(tmp_path / "whole", "val")


def test_last_weights_are_saved_and_a_damaged_checkpoint_is_one_line(
    p: Project, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither a validation nor `every_n_train_steps` is at the last step."""
    p.run(tmp_path, "--trainer.max_steps=5", every=100)
    assert saved(tmp_path)["global_step"] == 5
    assert saved(tmp_path, "best")["global_step"] == 3
    last = tmp_path / "a/checkpoints/last.ckpt"
    for damaged in (last.read_bytes()[:5000], b""):
        last.write_bytes(damaged)
        with pytest.raises(SystemExit):
            p.run(tmp_path, "--ckpt_path=last")
        assert capsys.readouterr().err.endswith("give another checkpoint as --ckpt_path\n")


def test_best_validation_has_its_name_of_0_4_0_in_a_checkpoint(
    p: Project,
    tmp_path: Path,
) -> None:
    """So an older run that is resumed still knows it."""
    best, _ = p.run(tmp_path).trainer.checkpoint_callbacks
    last = torch.load(tmp_path / "a/checkpoints/last.ckpt", weights_only=True)
    before = p.log.ModelCheckpoint(monitor=best.monitor, mode=best.mode)
    scores = column(tmp_path, best.monitor.removeprefix("val/"), "val")
    kept = last["callbacks"][before.state_key]["best_model_score"].item()
    assert kept == (max if best.mode == "max" else min)(scores)


def test_checkpoint_decides_the_spec(
    p: Project,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with mock.patch.object(p.datamodule, "rank_zero_info") as say:
        p.run(tmp_path)
    assert [call.args[0][:9] for call in say.call_args_list] == ["456 rows ", "2 classes"]
    load = p.data.load
    seen = list[Any]()

    def load_with(cfg: Any, spec: Any = None) -> Any:
        seen.append(spec)
        train_set, val_set, own = load(cfg)
        return train_set, val_set, spec or dataclasses.replace(own, center=9.0)

    monkeypatch.setattr(p.data, "load", load_with)
    best = f"--ckpt_path={tmp_path}/a/checkpoints/best.ckpt"
    p.run(tmp_path, best, "--trainer.logger=false", command="validate")
    p.run(tmp_path, "--ckpt_path=last")
    p.evaluate.load_run(tmp_path / "a", torch.device("cpu"))
    assert seen == [None, load(p.data.DataConfig())[2]] * 3, "the first looks for changes"

    def load_fewer(cfg: Any, spec: Any = None) -> Any:
        train_set, val_set, own = load(cfg, spec)
        return torch.utils.data.Subset(train_set, range(400)), val_set, own

    monkeypatch.setattr(p.data, "load", load_fewer)
    with mock.patch.object(p.datamodule, "rank_zero_info") as say:
        p.run(tmp_path, best, "--trainer.logger=false", command="validate")
    changed = "the data have 400 training samples, and the run had 456"
    assert say.call_args.args == (changed,)
    with pytest.raises(SystemExit):
        p.run(tmp_path, "--ckpt_path=last")
    assert f"error: {changed}: put the data back, or train a new run" in capsys.readouterr().err

    def validate_fewer(cfg: Any, spec: Any = None) -> Any:
        train_set, val_set, own = load(cfg, spec)
        return train_set, torch.utils.data.Subset(val_set, range(50)), own

    monkeypatch.setattr(p.data, "load", validate_fewer)
    with pytest.raises(SystemExit):
        p.run(tmp_path, "--ckpt_path=last")
    assert "error: the data have 50 validation samples, and" in capsys.readouterr().err
    monkeypatch.setattr(p.data, "load", load_with)
    monkeypatch.setattr(p.train, "saved_spec", lambda _: None)
    with pytest.raises(SystemExit):
        p.run(tmp_path, best, command="validate")


def test_resumed_run_with_other_steps_is_one_line_before_the_first_step(
    p: Project,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    p.run(tmp_path)
    before = rows(tmp_path)
    for other in ("max_steps=9", "max_epochs=3", "max_steps=5", "max_epochs=1"):
        with pytest.raises(SystemExit):
            p.run(tmp_path, f"--trainer.{other}", "--ckpt_path=last")
        last = capsys.readouterr().err.splitlines()[-1]
        assert last.startswith("error: the checkpoint is of a run of 6 steps, and not ")
    assert rows(tmp_path) == before


def test_resumed_run_with_other_options_is_one_line(
    p: Project,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Lightning takes the rate of the checkpoint, and says nothing of the one that is given."""
    p.run(tmp_path)
    before = rows(tmp_path)
    with pytest.raises(SystemExit):
        p.run(tmp_path)
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.endswith(
        "/a/checkpoints/last.ckpt exists: resume it with --ckpt_path last, or use "
        "another trainer.logger.version"
    )
    p.run(tmp_path, "--trainer.fast_dev_run=true")  # which saves nothing
    for option in ("model.lr=0.5", "data.val_fraction=0.5", "trainer.gradient_clip_val=9.0"):
        with pytest.raises(SystemExit):
            p.run(tmp_path, f"--{option}", "--ckpt_path=last")
        last = capsys.readouterr().err.splitlines()[-1]
        name, value = option.split("=")
        assert f"a was trained with {name}=" in last
        assert f", and not {value}: put back" in last
    assert rows(tmp_path) == before
    with mock.patch.object(p.module, "rank_zero_info") as say:
        p.run(tmp_path, "--data.num_workers=1", "--ckpt_path=last")
    assert say.call_args.args == ("the run of this checkpoint is finished, after 6 steps",)
    (tmp_path / "a/config.json").write_text("damaged")
    with mock.patch.object(p.log, "rank_zero_info") as say:
        p.run(tmp_path, "--ckpt_path=last")
    assert "config.json is missing or damaged: options are not" in say.call_args.args[0]


def test_options_that_may_change_are_recorded_with_those_of_before(
    p: Project,
    tmp_path: Path,
) -> None:
    p.run(tmp_path, "--trainer.val_check_interval=4")
    best = tmp_path / "a/checkpoints/best.ckpt"
    p.run(tmp_path, f"--ckpt_path={best}", "--data.num_workers=1")
    record = json.loads((tmp_path / "a/config.json").read_text())
    (before,) = record["history"]
    assert (before["until_step"], record["starts"]) == (4, [0, 4])
    workers = [values["config"]["data"]["num_workers"] for values in (before, record)]
    assert workers == [0, 1]


def test_changed_options_are_named_before_the_steps_and_weights_that_follow_from_them(
    p: Project,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A refused run also keeps its config.yaml, from which it is evaluated."""
    p.run(tmp_path, "--trainer.max_epochs=1", "--trainer.max_steps=-1")
    config = (tmp_path / "a/config.yaml").read_text()
    with pytest.raises(SystemExit):
        p.run(
            tmp_path,
            "--trainer.max_epochs=1",
            "--trainer.max_steps=-1",
            "--data.batch_size=8",
            "--model.size=wide",
            "--ckpt_path=last",
        )
    last = capsys.readouterr().err.splitlines()[-1]
    assert "/a was trained with model.size=" in last
    assert ", and not wide; " in last
    assert "; data.batch_size=16, and not 8: put back what it was" in last
    assert (tmp_path / "a/config.yaml").read_text() == config


class Code:
    """Creates a file when it is unpickled."""

    def __init__(
        self,
        file: Path,
    ) -> None:
        self.file = file

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.file,))


@pytest.mark.parametrize("command", ["fit", "validate"])
def test_checkpoint_with_code_is_refused(
    p: Project,
    tmp_path: Path,
    command: str,
) -> None:
    torch.save({"state_dict": Code(tmp_path / "executed")}, tmp_path / "hostile.ckpt")
    with pytest.raises(SystemExit):
        p.run(tmp_path, f"--ckpt_path={tmp_path}/hostile.ckpt", command=command)
    assert not (tmp_path / "executed").exists()


@pytest.mark.test_all
def test_checkpoint_with_code_at_a_url_is_refused(
    p: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lightning's own default for a URL is weights_only=False."""
    torch.save({"state_dict": Code(tmp_path / "executed")}, tmp_path / "hostile.ckpt")
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    handler = partial(SimpleHTTPRequestHandler, directory=str(tmp_path))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        option = f"--ckpt_path=http://127.0.0.1:{server.server_port}/hostile.ckpt"
        with pytest.raises(Exception, match="Weights only load failed"):
            p.run(tmp_path, option, command="validate")
        server.shutdown()
    assert not (tmp_path / "executed").exists()


def test_run_with_code_in_its_weights_is_not_loaded(
    p: Project,
    tmp_path: Path,
) -> None:
    p.run(tmp_path)
    torch.save({"state_dict": Code(tmp_path / "executed")}, tmp_path / "a/checkpoints/best.ckpt")
    with pytest.raises(Exception, match="Weights only load failed"):
        p.evaluate.load_run(tmp_path / "a", torch.device("cpu"))
    assert not (tmp_path / "executed").exists()


@pytest.mark.slow
def test_metrics_of_two_ranks_are_those_of_one(
    p: Project,
    tmp_path: Path,
) -> None:
    """Of 456 and 113 rows, in batches of 16; each sample counts once."""
    options = ["--trainer.devices=2", "--trainer.strategy=ddp", "--trainer.max_steps=2"]
    p.finish(
        tmp_path,
        *options,
        "--trainer.val_check_interval=2",
        ranks=2,
    )
    (two,) = rows(tmp_path, "val")

    checkpoint = f"--ckpt_path={tmp_path}/a/checkpoints/last.ckpt"
    cli = p.run(tmp_path / "one", checkpoint, command="validate")
    one = cli.trainer.callback_metrics
    for name in ("loss", "accuracy"):
        assert one[f"val/{name}"].item() == pytest.approx(two[name], rel=1e-5)

    _, val_set, _ = cli.datamodule.splits
    batch = p.contracts.load_batch(val_set, list(range(len(val_set))))
    loss, metrics = cli.model.net.eval()(*cli.model.prepare(batch, False, None))
    right, count = metrics["accuracy"]
    assert float(count) == 113
    assert loss.item() == pytest.approx(two["loss"], rel=1e-5)
    assert float(right / count) == pytest.approx(two["accuracy"], rel=1e-5)
