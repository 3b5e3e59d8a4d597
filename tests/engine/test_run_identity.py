"""A run is what it was trained with; how it ends; names; its best validation."""

import hashlib
import json
import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from engine import MakePackage, Package, checkpoints, rows, saved, times, trained_elsewhere
from torch import nn

SIX = ["--train.steps=6", "--train.eval_every=3", "--run.keep=9"]


def record(folder: Path) -> dict[str, Any]:
    """Return config.json of a run."""
    return dict(json.loads((folder / "a/config.json").read_text()))


def unfinished(p: Package, folder: Path, *options: str) -> None:
    """Train, and remove the last checkpoint, so that the run resumes from step 3."""
    p.train_here(folder, *SIX, *options)
    for file in checkpoints(folder)[-1].iterdir():
        file.unlink()
    checkpoints(folder)[-1].rmdir()


def test_resumed_run_says_what_its_machine_changes(
    p: Package, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    unfinished(p, tmp_path)
    message = trained_elsewhere(tmp_path)
    p.train_here(tmp_path, *SIX)
    assert message in capsys.readouterr().out
    assert record(tmp_path)["history"][0]["versions"]["threads"] == "99"


def write_state(checkpoint: Path, state: Any) -> None:
    """Replace the state of a checkpoint, with a manifest that fits."""
    file = checkpoint / "state.pt"
    if isinstance(state, bytes):
        file.write_bytes(state)
    else:
        torch.save(state, file)
    sums = {"state.pt": hashlib.sha256(file.read_bytes()).hexdigest()}
    (checkpoint / "manifest.json").write_text(json.dumps({"sha256": sums}))


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--data.val_samples=9", "data.val_samples=7, and not 9"),
        ("--model.dropout=0.1", "model.dropout=0.2, and not 0.1"),
        ("--run.seed=1", "run.seed=0, and not 1"),
        ("--train.batch_size=8", "train.global_batch_size=16, and not 8"),
        ("--train.gradient_accumulation_steps=2", "train.global_batch_size=16, and not 32"),
        ("--train.steps=9", "train.steps=6, and not 9"),
        ("--train.epochs=2", "train.epochs=1.0, and not 2.0"),
        ("--optim.lr=0.1", "optim.lr=0.001, and not 0.1"),
        ("--speed.precision=auto", 'speed.precision="fp32", and not "auto"'),
    ],
)
def test_other_options_are_one_line_with_both_ways_out(
    p: Package, tmp_path: Path, option: str, message: str
) -> None:
    unfinished(p, tmp_path)
    before = record(tmp_path)
    with pytest.raises(p.errors.UserError) as raised:
        p.train_here(tmp_path, *SIX, option)
    assert str(raised.value) == (
        f"{tmp_path}/a was trained with {message}: put back what it was, or use another run.name"
    )
    assert record(tmp_path) == before
    p.train_here(tmp_path, *SIX)
    assert saved(tmp_path)["step"] == 6


def test_two_ranks_say_one_line(p: Package, tmp_path: Path) -> None:
    p.train_here(tmp_path, *SIX)
    done = p.finish(
        tmp_path,
        *SIX,
        "--optim.lr=0.1",
        "--train.batch_size=8",
        ranks=2,
        expect=1,
    )
    assert "was trained with optim.lr=0.001, and not 0.1: put back" in done.stderr


def test_what_changes_no_result_may_change_and_is_recorded_beside_the_old_record(
    p: Package, tmp_path: Path
) -> None:
    p.train_here(tmp_path / "whole", *SIX)
    unfinished(p, tmp_path)
    other = ["--log.every=2", "--run.keep=8", "--loader.prefetch_factor=3", "--run.hours=9"]
    other += ["--train.batch_size=8", "--train.gradient_accumulation_steps=2"]
    p.train_here(tmp_path, *SIX, *other)
    [before] = record(tmp_path)["history"]
    assert before["until_step"] == 3
    assert before["config"]["log"]["every"] == 1
    assert record(tmp_path)["config"]["log"]["every"] == 2
    for name, weight in saved(tmp_path)["model"].items():
        assert weight.shape == saved(tmp_path / "whole")["model"][name].shape
    p.train_here(tmp_path, *SIX, "--train.eval_every=2", "--train.monitor_mode=min")
    steps = [entry["until_step"] for entry in record(tmp_path)["history"]]
    assert steps == [3, 6]
    assert record(tmp_path)["starts"] == [0, 3, 6]
    assert times(tmp_path) == sorted(times(tmp_path)), "they go on when a run is resumed"


def test_same_command_again_and_again_adds_no_record(p: Package, tmp_path: Path) -> None:
    for _ in range(3):
        unfinished(p, tmp_path)
    assert record(tmp_path)["history"] == []


def test_run_without_a_checkpoint_starts_anew_with_any_options(p: Package, tmp_path: Path) -> None:
    with pytest.raises(p.errors.UserError, match="the gradient norm nan"):
        p.train_here(tmp_path, *SIX, "--model.kind=nan", "--train.batch_size=8")
    p.train_here(tmp_path, *SIX)
    assert record(tmp_path)["config"]["model"]["kind"] == "plain"
    assert record(tmp_path)["history"] == []


def test_longer_run_on_purpose(p: Package, tmp_path: Path) -> None:
    p.train_here(tmp_path, *SIX)
    p.train_here(tmp_path, *SIX, "--train.steps=9", "--run.allow_changes=true")
    assert saved(tmp_path)["step"] == 9
    assert [row["step"] for row in rows(tmp_path, "val")] == [3, 6, 9]
    assert record(tmp_path)["history"][0]["config"]["train"]["steps"] == 6
    with pytest.raises(p.errors.UserError, match="train.steps=9, and not 6"):
        p.train_here(tmp_path, *SIX)


def test_home_folder_of_an_older_record_is_that_of_now(p: Package, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"trained_with": {"data.path": "~/photos"}}')
    home = Path.home()
    p.record.check(tmp_path, p.config.BaseConfig(), {"data.path": f"{home}/photos"})
    with pytest.raises(p.errors.UserError, match=f"data.path=.{home}/photos., and not .{home}/x"):
        p.record.check(tmp_path, p.config.BaseConfig(), {"data.path": f"{home}/x"})


def test_option_that_is_newer_than_the_run_had_its_default(p: Package, tmp_path: Path) -> None:
    unfinished(p, tmp_path)
    file = tmp_path / "a/config.json"
    values = json.loads(file.read_text())
    del values["trained_with"]["model.dropout"]
    file.write_text(json.dumps(values))
    with pytest.raises(p.errors.UserError, match=r"model.dropout=.*, and not 0.25"):
        p.train_here(tmp_path, *SIX, "--model.dropout=0.25")
    p.train_here(tmp_path, *SIX)


def test_run_without_an_intact_record_says_that_nothing_is_compared(
    p: Package, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damaged = ("damaged", "", '{"trained_with": null, "config": {}}', '{"config": 3}', "[]")
    for content, says_it in (*((text, True) for text in damaged), (None, False)):
        unfinished(p, tmp_path)
        if content is not None:
            (tmp_path / "a/config.json").write_text(content)
        capsys.readouterr()
        p.train_here(tmp_path, *SIX)
        said = (
            "config.json was missing or damaged: options are not compared"
            in capsys.readouterr().out
        )
        assert said == says_it
        shutil.rmtree(tmp_path / "a")


def test_component_that_decides_what_is_trained_stays_and_others_may_change(
    package: MakePackage, tmp_path: Path
) -> None:
    p = package("mlp", "schedules", "ema", "early-stopping")
    wsd = ["--schedules.enabled=true", "--schedules.name=wsd"]
    unfinished(p, tmp_path, *wsd)
    for option, message in {
        "--schedules.enabled=false": "schedules.enabled=true, and not false",
        "--schedules.name=cosine": 'schedules.name="wsd", and not "cosine"',
    }.items():
        with pytest.raises(p.errors.UserError, match=message):
            p.train_here(tmp_path, *SIX, *wsd, option)
    more = ["--ema.enabled=true", "--early_stopping.enabled=true"]
    p.train_here(tmp_path, *SIX, *wsd, *more)
    assert saved(tmp_path)["step"] == 6


def test_finished_run_says_so_in_one_line_and_changes_nothing(p: Package, tmp_path: Path) -> None:
    p.finish(tmp_path, *SIX)
    before = record(tmp_path), rows(tmp_path), checkpoints(tmp_path)
    for ranks in (1, 2):
        # the global batch of two ranks differs, but nothing is left to train
        done = p.finish(
            tmp_path,
            *SIX,
            f"--log.every={ranks}",
            f"--loader.num_workers={ranks}",
            ranks=ranks,
        )
        line = f"{tmp_path}/a is finished, after 6 steps: use another run.name\n"
        assert (done.stdout, done.stderr) == (line, "")
    assert (record(tmp_path), rows(tmp_path), checkpoints(tmp_path)) == before
    (checkpoints(tmp_path)[-1] / "state.pt").unlink()
    assert "done after 6 steps" in p.finish(tmp_path, *SIX).stdout
    assert (rows(tmp_path), checkpoints(tmp_path)) == before[1:]


def test_other_number_of_validation_samples_is_one_line(
    p: Package,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The best weights would be chosen by other samples."""
    unfinished(p, tmp_path)
    load = p.data.load

    def load_fewer(cfg: Any) -> Any:
        train_set, val_set, spec = load(cfg)
        return train_set, torch.utils.data.Subset(val_set, range(5)), spec

    monkeypatch.setattr(p.data, "load", load_fewer)
    with pytest.raises(p.errors.UserError, match="with validation samples=7, and not 5: put back"):
        p.train_here(tmp_path, *SIX)
    p.evaluate.load_run(tmp_path / "a", CPU)
    changed = "the data have 5 validation samples, and had 7 in the run\n"
    assert capsys.readouterr().err == changed


class Data:
    """A data.py without a parameter for the Spec; with `takes_spec`, with one."""

    def __init__(self, p: Package, monkeypatch: pytest.MonkeyPatch) -> None:
        @dataclass(frozen=True)
        class Spec:
            inputs: int = 4
            classes: tuple[str, ...] = ("cat", "dog")
            mean: tuple[float, ...] = (0.1,)

        self.own = p.data.load
        self.make = Spec
        self.spec: Any = Spec()
        self.samples = 53
        self.given: list[Any] = []
        self.patch = monkeypatch
        self.module = p.data
        monkeypatch.setattr(p.data, "Spec", Spec)
        monkeypatch.setattr(p.data, "load", self.load)

    def load(self, cfg: Any) -> tuple[Any, Any, Any]:
        """Return the samples and the Spec of this object."""
        train_set, val_set, _ = self.own(type(cfg)(samples=self.samples))
        return train_set, val_set, self.spec

    def takes_spec(self) -> None:
        """Give data.py the parameter."""

        def load(cfg: Any, spec: Any = None) -> tuple[Any, Any, Any]:
            self.given.append(spec)
            train_set, val_set, own = self.load(cfg)
            return train_set, val_set, spec or own

        self.patch.setattr(self.module, "load", load)


@pytest.fixture
def data(p: Package, monkeypatch: pytest.MonkeyPatch) -> Data:
    return Data(p, monkeypatch)


CPU = torch.device("cpu")


def test_other_number_of_samples_is_one_line(
    p: Package, tmp_path: Path, data: Data, capsys: pytest.CaptureFixture[str]
) -> None:
    unfinished(p, tmp_path)
    data.samples = 60
    with pytest.raises(p.errors.UserError, match="with training samples=53, and not 60: put back"):
        p.train_here(tmp_path, *SIX)
    p.evaluate.load_run(tmp_path / "a", CPU)
    changed = "the data have 60 training samples, and had 53 in the run\n"
    assert capsys.readouterr().err == changed
    p.train_here(tmp_path, *SIX, "--run.allow_changes=true")


def test_other_spec_is_one_line_for_a_resume_and_for_evaluate(
    p: Package, tmp_path: Path, data: Data
) -> None:
    unfinished(p, tmp_path)
    assert saved(tmp_path)["spec"] == {"inputs": 4, "classes": ("cat", "dog"), "mean": (0.1,)}
    data.spec = data.make(classes=("dog", "wolf"))
    message = (
        r"Spec.classes of data.py is \('dog', 'wolf'\), and the run was trained with "
        r"\('cat', 'dog'\): put the data of the run back, or train a new run"
    )
    with pytest.raises(p.errors.UserError, match=message):
        p.train_here(tmp_path, *SIX)
    with pytest.raises(p.errors.UserError, match=message):
        p.evaluate.load_run(tmp_path / "a", CPU)
    data.spec = data.make(classes=("cat", "wolf" * 99))
    with pytest.raises(p.errors.UserError, match=r"is \('cat', '[wolf]{91}, and the run"):
        p.train_here(tmp_path, *SIX)
    data.spec = data.make(mean=(0.1 + 1e-12,))
    found = p.evaluate.load_run(tmp_path / "a", CPU)[3]
    assert found == data.make(), "rounding is no difference, and the saved one is used"


def test_long_values_that_begin_alike_are_not_shown(
    p: Package,
    tmp_path: Path,
    data: Data,
    capsys: pytest.CaptureFixture[str],
) -> None:
    data.spec = data.make(classes=("wolf" * 99, "cat"))
    unfinished(p, tmp_path)
    data.spec = data.make(classes=("wolf" * 99, "dog"))
    message = "Spec.classes of data.py is not that of the run: put the data"
    with pytest.raises(p.errors.UserError, match=message):
        p.train_here(tmp_path, *SIX)
    capsys.readouterr()
    data.takes_spec()
    p.evaluate.load_run(tmp_path / "a", CPU)
    said = "the data have changed: Spec.classes of the run is not that of a new run\n"
    assert capsys.readouterr().err == said


def test_data_that_take_the_spec_get_the_saved_one(
    p: Package,
    tmp_path: Path,
    data: Data,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    data.takes_spec()
    unfinished(p, tmp_path)
    assert data.given == [None]
    trained = data.spec
    data.spec = data.make(classes=("dog", "wolf"), mean=(0.7,))
    p.train_here(tmp_path, *SIX)
    assert p.evaluate.load_run(tmp_path / "a", CPU)[3] == trained
    assert data.given == [None, None, trained, None, trained]
    changed = (
        "the data have changed: Spec.mean of the run was (0.1,), and a new run's would be (0.7,)"
    )
    assert capsys.readouterr().err.count(changed) == 2
    tests: list[Any] = []

    def load_test(cfg: Any, spec: Any = None) -> Any:
        tests.append(spec)
        return data.load(cfg)[1]

    monkeypatch.setattr(p.data, "load_test", load_test, raising=False)
    p.evaluate.evaluate_run(
        tmp_path / "a",
        p.distributed.World(0, 1, CPU),
        "test",
    )
    assert tests == [trained]


def test_finetuning_on_other_data_says_what_differs(
    tiny: MakePackage,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    p = tiny("finetune")
    data = Data(p, monkeypatch)
    p.train_here(tmp_path / "first", *SIX)
    on = ["--finetune.enabled=true", f"--finetune.weights={tmp_path}/first/a"]
    p.train_here(tmp_path / "same", *SIX, *on)
    assert "its data differ" not in capsys.readouterr().out
    data.spec = data.make(classes=("dog", "wolf"), mean=(0.7,))
    p.train_here(tmp_path / "other", *SIX, *on)
    assert f"from {tmp_path}/first/a; its data differ in classes, mean\n" in (
        capsys.readouterr().out
    )


def test_spec_with_other_fields_is_one_line(p: Package, tmp_path: Path, data: Data) -> None:
    unfinished(p, tmp_path)

    @dataclass(frozen=True)
    class Smaller:
        inputs: int = 4

    data.patch.setattr(p.data, "Spec", Smaller)
    with pytest.raises(p.errors.UserError, match=r"the Spec of data.py is not that of the run \("):
        p.train_here(tmp_path, *SIX)


def test_spec_that_no_checkpoint_could_keep_is_one_line(
    p: Package, tmp_path: Path, data: Data
) -> None:
    data.spec = data.make(mean=np.ones(1))  # type: ignore[arg-type]
    with pytest.raises(p.errors.UserError, match="Spec.mean of data.py has a ndarray"):
        p.train_here(tmp_path, *SIX)
    assert not (tmp_path / "a").exists(), "before the first step"


def test_checkpoint_of_before_without_a_spec_resumes_and_is_evaluated(
    p: Package, tmp_path: Path
) -> None:
    unfinished(p, tmp_path)
    state = saved(tmp_path)
    del state["spec"]
    write_state(checkpoints(tmp_path)[-1], state)
    (tmp_path / "a/config.json").write_text(json.dumps({"config": record(tmp_path)["config"]}))
    p.evaluate.load_run(tmp_path / "a", CPU)
    p.train_here(tmp_path, *SIX, "--optim.lr=0.1")
    assert saved(tmp_path)["spec"] == {"inputs": 4}


def test_first_lines_describe_the_data(
    p: Package,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:

    def describe(
        train_set: Any,
        val_set: Any,
        spec: Any,
    ) -> list[str]:
        return [f"{spec.inputs} inputs: {len(train_set)} + {len(val_set)}"]

    monkeypatch.setattr(p.data, "describe", describe, raising=False)
    p.train_here(tmp_path, *SIX)
    assert capsys.readouterr().out.splitlines()[2] == "4 inputs: 53 + 7"


def test_runs_without_a_name_that_start_in_the_same_second_have_folders_of_their_own(
    p: Package, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "strftime", lambda _: "2026-11-27-10-00-00")
    cfg = p.config.RunConfig(dir=tmp_path / "runs")
    world = p.distributed.World(0, 1, CPU)
    names = [p.run.run_folder(cfg, world).name for _ in range(3)]
    assert names == [f"2026-11-27-10-00-00{end}" for end in ("", "-2", "-3")]
    assert all((tmp_path / "runs" / name).is_dir() for name in names)


def test_ranks_without_a_name_share_a_folder(p: Package, tmp_path: Path) -> None:
    p.finish(tmp_path, *SIX, "--run.name=null", "--train.batch_size=8", ranks=2)
    [folder] = tmp_path.iterdir()
    assert (folder / "config.json").exists()


def test_validation_that_is_not_finite_is_never_the_best(
    p: Package,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    values = iter(
        [
            float("nan"),
            3.0,
            float("inf"),
            float("nan"),
        ]
    )
    monkeypatch.setattr(
        p.train,
        "evaluate",
        lambda *_: {"score": next(values)},
    )
    options = ["--train.monitor=score", "--train.monitor_mode=max"]
    p.train_here(tmp_path, "--train.steps=4", "--train.eval_every=1", *options)
    best = json.loads((tmp_path / "a/checkpoints/best.json").read_text())
    assert (best["step"], best["value"]) == (2, 3.0)
    out = capsys.readouterr().out
    for value, step in (("nan", 1), ("inf", 3), ("nan", 4)):
        line = f"warning: score is {value} in the validation of step {step}\n"
        assert line in out


def test_early_stopping_takes_no_infinity_for_the_best(
    tiny: MakePackage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    p = tiny("early-stopping")
    values = iter(
        [
            1.0,
            float("inf"),
            2.0,
            float("nan"),
            3.0,
        ]
    )
    monkeypatch.setattr(
        p.train,
        "evaluate",
        lambda *_: {"score": next(values)},
    )
    options = ["--train.steps=5", "--train.eval_every=1", "--train.monitor=score"]
    options.append("--train.monitor_mode=max")
    p.train_here(tmp_path, *options, "--early_stopping.enabled=true", "--early_stopping.patience=2")
    assert saved(tmp_path)["step"] == 5
    assert saved(tmp_path)["components"]["early_stopping"]["best"] == -2.0, (
        "as before the last validation"
    )


def test_best_is_of_the_present_monitor(
    p: Package, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = iter([1.0, 5.0, 2.0, 3.0])
    monkeypatch.setattr(
        p.train,
        "evaluate",
        lambda *_: {"loss": next(values), "score": 7.0},
    )
    options = ["--train.steps=6", "--train.eval_every=3"]
    p.train_here(tmp_path, *options)
    p.train_here(tmp_path, *options, "--train.monitor=score", "--train.monitor_mode=max")
    best = json.loads((tmp_path / "a/checkpoints/best.json").read_text())
    assert best == {"step": 6, "value": 7.0, "monitor": "score", "mode": "max"}


def test_early_stopping_counts_anew_for_another_monitor(tiny: MakePackage) -> None:
    p = tiny("early-stopping")
    own = p.components.early_stopping
    plan = SimpleNamespace(total_steps=100)

    def validate(
        component: Any,
        step: int,
        loss: float,
        *options: str,
    ) -> Any:
        run = SimpleNamespace(
            cfg=p.options(*options),
            step=step,
            plan=plan,
            finished=False,
        )
        component.on_validation(run, {"loss": loss, "score": loss})
        return component.state_dict()

    first = own.EarlyStopping(own.EarlyStoppingConfig(), None)
    validate(first, 1, 0.1)
    state = validate(first, 2, 0.2)
    assert (state["best"], state["since"]) == (0.1, 1)
    for options, best in {
        ("--train.monitor=score", "--train.monitor_mode=min"): 0.9,
        ("--train.monitor=score", "--train.monitor_mode=max"): -0.9,
    }.items():
        resumed = own.EarlyStopping(own.EarlyStoppingConfig(), None)
        resumed.load_state_dict(state)
        found = validate(resumed, 3, 0.9, *options)
        assert (found["best"], found["since"]) == (best, 0)


def test_scaler_of_fp16_starts_anew_where_the_checkpoint_has_none(
    p: Package, tmp_path: Path
) -> None:
    unfinished(p, tmp_path)
    p.train_here(tmp_path, *SIX, "--speed.precision=fp16", "--run.allow_changes=true")
    assert saved(tmp_path)["scaler"]["scale"] > 0


FOREIGN: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "other keys": (
        lambda state: {"step": 9, "weights": state["model"]},
        "of another program",
    ),
    "a list": (lambda state: [1, 2], "cannot be read"),
    "a tensor": (lambda state: torch.ones(3), "cannot be read"),
    "a pickle of code": (lambda state: {"step": subprocess.Popen}, "cannot be read"),
    "text": (lambda state: b"hello", "cannot be read"),
    "empty": (lambda state: b"", "cannot be read"),
}


@pytest.mark.parametrize("kind", FOREIGN)
def test_foreign_content_is_one_line_with_the_file(p: Package, tmp_path: Path, kind: str) -> None:
    unfinished(p, tmp_path)
    checkpoint = checkpoints(tmp_path)[-1]
    change, message = FOREIGN[kind]
    write_state(checkpoint, change(saved(tmp_path)))
    uses: list[Callable[[], Any]] = [lambda: p.train_here(tmp_path, *SIX)]
    uses.append(lambda: p.evaluate.load_run(tmp_path / "a", CPU))
    uses.append(lambda: p.checkpoint.load_weights(tmp_path / "a"))
    for use in uses:
        with pytest.raises(p.errors.UserError) as raised:
            use()
        assert f"the checkpoint {checkpoint}/state.pt " in str(raised.value)
        assert "\n" not in str(raised.value)
    with pytest.raises(p.errors.UserError, match=message):
        p.train_here(tmp_path, *SIX)


def test_model_and_optimizer_that_do_not_fit_are_one_line(
    p: Package, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unfinished(p, tmp_path)
    build = p.model.build

    def wider(*sections: Any) -> Any:
        net = build(*sections)
        net.layers[4] = nn.Linear(8, 2)
        return net

    def frozen(*sections: Any) -> Any:
        net = build(*sections)
        net.layers[4].bias.requires_grad_(False)
        return net

    for module in (p.train, p.evaluate):
        monkeypatch.setattr(module, "build", wider)
    message = (
        r"step-00000003 has the weights of another model \(size mismatch for layers.4.bias: "
        r"copying a param .*\): put the model and the data of the run back, or use another"
    )
    with pytest.raises(p.errors.UserError, match=message):
        p.train_here(tmp_path, *SIX)
    with pytest.raises(p.errors.UserError, match=message):
        p.evaluate.load_run(tmp_path / "a", CPU)
    monkeypatch.undo()
    monkeypatch.setattr(p.train, "build", frozen)
    with pytest.raises(p.errors.UserError, match="the optimizer's state in the checkpoint does"):
        p.train_here(tmp_path, *SIX)
