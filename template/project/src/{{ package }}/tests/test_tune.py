"""tune: what it finds on machines whose speed and memory are known, what it keeps, and what it refuses."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from ..config import as_dict
from ..distributed import World
from ..tools import trial, tune
from ..tools.trial import Trial
from ..tools.tuning import probe, rate, result, trials, tuner
from ..tools.tuning.found import Compared, Facts
from .conftest import PARENT, ROOT, small

FACTS = Facts("cpu", 1, 4, 1000, 0, "fp32", True, 16.0, False, ["none", "device"], "a machine")
DRAW = result.draw
Speed = Callable[[dict[str, Any], int], float]
"""Samples per second with these options, in the trial of this number; an error if it is below 0."""


class Machine:
    """Answers in place of the training command."""

    def __init__(self, speed: Speed) -> None:
        self.speed, self.asked, self.drawn = speed, list[dict[str, Any]](), 0

    def run(self, options: list[str], **limits: Any) -> Trial:
        pairs = [option.removeprefix("--").partition("=") for option in options]
        plain = ("true", "false", "null")
        values = {name: json.loads(it) if it.isdecimal() or it in plain else it for name, _, it in pairs}
        self.asked.append(values)
        found = self.speed(values, len(self.asked))
        if found < 0:
            return Trial("failed" if found == -1 else "out of memory", "speed: refused here", 1.0, None)
        seconds = 60.0 if "speed.compile" in values else 1.0
        return Trial("ok", "", seconds, 0.5, {}, [{"samples_per_second": found}] * 4)


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """Run tune on a machine; return its JSON, the config that it wrote, and the machine."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs/default.yaml").touch()
    monkeypatch.setattr(trial, "end_on_signals", lambda: None)
    monkeypatch.setattr(trial, "busy", str)

    def run(
        speed: Speed,
        *options: str,
        facts: Facts = FACTS,
        base: tuple[str, ...] = (),
        draw: Callable[..., None] | None = None,
        **ceilings: float,
    ) -> Any:
        machine = Machine(speed)
        # Instead of a figure, which takes a second, keep the micro-batch that is marked in it.
        monkeypatch.setattr(result, "draw", lambda *it: draw(*it) if draw else setattr(machine, "drawn", it[3]))
        monkeypatch.setattr(trial, "run", machine.run)
        monkeypatch.setattr(tuner, "_config", lambda _: as_dict(small("--train.micro_batch=64", *base)))

        def ask(self: object, config: object, **request: Any) -> Any:
            asked = request.get("loaders")
            return [ceilings.get(f"w{it['workers']}", 1e6) for it in asked] if asked else asdict(facts)

        monkeypatch.setattr(trials.Trials, "ask", ask)
        tune.main(["--json", *options])
        return json.loads(capsys.readouterr().out), Path("configs/tuned.yaml").read_text(), machine

    return run


def test_largest_batch_equals_that_of_trying_all_and_the_knee_is_chosen(start: Callable[..., Any]) -> None:
    def speed(values: dict[str, Any], _: int) -> float:
        size = values.get("train.micro_batch", 64)
        return -2 if size > 345 else 1000 * size / (size + 20)

    found, text, machine = start(speed, "--only=batch", "--larger-global-batch")
    sizes = {it for it in range(8, 1001, 8) if speed({"train.micro_batch": it}, 0) > 0}
    assert f"{max(sizes)} fits with 10% of the memory free, {max(sizes) + 8} does not" in found["findings"][0]["why"]
    tried = {it.get("train.micro_batch", 64) for it in machine.asked}
    assert max(sizes) in tried
    assert len(tried) < 12
    fast = [
        it for it in tried & sizes if speed({"train.micro_batch": it}, 0) >= 0.95 * max(found["throughput"].values())
    ]
    assert found["values"]["train.micro_batch"] == min(fast) < max(sizes)
    assert f"  micro_batch: {min(fast)}  # " in text
    assert "  global_batch: null  # goes with micro_batch" in text


@pytest.mark.parametrize("base", [("--train.accumulate=3",), ("--train.global_batch=192",)])
def test_global_batch_stays_as_it_is(start: Callable[..., Any], base: tuple[str, ...]) -> None:
    found, _, machine = start(lambda it, _: it.get("train.micro_batch", 64), "--only=batch", base=base)
    train = replace(small("--train.micro_batch=64", *base).train)
    for values in [found["values"], *machine.asked]:
        own = {name.removeprefix("train."): it for name, it in values.items() if name.startswith("train.")}
        after = replace(train, **own)
        assert (after.global_batch or after.micro_batch * after.accumulate) == 192
    assert found["values"]["train.micro_batch"] == machine.drawn == 192
    assert found["compared"]["ratio"] == 3

    def lucky(values: dict[str, Any], number: int) -> float:
        larger = values.get("train.micro_batch", 64) > 64
        return 100.0 if not larger else 150.0 if number < 5 else 50.0

    found, _, machine = start(lucky, "--only=batch", "--run.seed=1", base=base)
    assert (found["findings"][0]["what"], found["values"], machine.drawn) == ("train.micro_batch=96", {}, 64)


def test_slow_data_lead_to_more_workers_and_fast_ones_to_none(start: Callable[..., Any]) -> None:
    def slow(values: dict[str, Any], _: int) -> float:
        return 100.0 * (1 + int(values.get("loader.workers", 0)))

    found, text, _ = start(slow, "--only=loader", w0=100.0, w1=200.0, w2=300.0, w4=500.0)
    assert found["values"] == {"loader.workers": 4}
    assert "  workers: 4  # 500 samples/s against 100 (3 rounds); with 0, the step waits for data 100.0%" in text
    ceilings = {f"w{it}": 100.0 * (1 + it) for it in (0, 1, 2, 4, 8, 16, 32)}
    found, _, _ = start(slow, "--only=loader", facts=replace(FACTS, cores=64), **ceilings)
    assert found["values"] == {"loader.workers": 32}, "auto takes as many"
    facts = replace(FACTS, workers=4)
    found, _, machine = start(lambda it, _: 1000.0 - it.get("loader.workers", 4), "--only=loader", facts=facts)
    assert found["values"] == {"loader.workers": 0}
    assert not any("data.cache" in it for it in machine.asked), "the loader is not what limits"


def test_memory_and_copies_are_those_of_any_accelerator(start: Callable[..., Any]) -> None:
    """The peak of a trial is 0.5 GB; pinned memory is tried where a device copies asynchronously."""
    for streams, memory, fits in ((True, 0.55, False), (True, 0.6, True), (False, 0.55, True)):
        facts = replace(FACTS, device="xpu" if streams else "mps", memory_gb=memory, streams=streams)
        if fits:
            found, _, _ = start(lambda *_: 1000.0, "--only=batch", facts=facts)
            assert found["findings"][0]["verdict"] == "no proven gain"
        else:
            with pytest.raises(SystemExit, match=r"not even train.micro_batch=\d+ runs"):
                start(lambda *_: 1000.0, "--only=batch", facts=facts)
        found, _, _ = start(lambda *_: 1000.0, "--only=loader", facts=facts)
        verdicts = {it["what"]: it["verdict"] for it in found["findings"]}
        assert verdicts["loader.pin_memory=false"] == ("no proven gain" if streams else "skipped")


@pytest.mark.parametrize("streams", [True, False])
def test_probe_reads_the_memory_of_any_accelerator(
    monkeypatch: pytest.MonkeyPatch, world: World, streams: bool
) -> None:
    monkeypatch.setattr(probe, "has_streams", lambda device: streams)
    monkeypatch.setattr(torch.accelerator, "get_memory_info", lambda device: (1, 48_000_000_000))
    found = probe.facts(small(), world)
    assert found.streams == streams
    assert (found.memory_gb == 48) == streams
    with monkeypatch.context() as files:
        files.setattr(Path, "read_text", lambda file: {"meminfo": "MemAvailable: 2000000 kB\n"}.get(file.name, "max"))
        assert probe._free_gb() == 2.048


def test_a_switch_is_kept_only_if_it_is_faster_in_every_round(start: Callable[..., Any]) -> None:
    def speed(values: dict[str, Any], number: int) -> float:
        if values.get("speed.compile") == "blocks":
            return -1
        now = 1000.0 + 10 * number  # which other programs leave more and more of
        lucky = "speed.precision" in values and number < 4
        now *= 1.3 if "speed.compile" in values else 1.0
        unlucky = 0.99 if "speed.precision" in values else 1.0
        return now * (1.5 if lucky else unlucky) * (1.2 if "speed.channels_last" in values else 1.0)

    found, text, _ = start(speed, "--only=speed")
    verdicts = {it["what"]: (it["verdict"], it["why"]) for it in found["findings"]}
    assert verdicts["speed.precision=bf16"][0] == "no proven gain"
    assert verdicts["speed.precision=tf32"] == ("skipped", "needs a GPU")
    assert verdicts["speed.step_graph=true"] == ("skipped", "needs a GPU")
    assert verdicts["speed.compile=blocks"] == ("refused", "speed: refused here")
    assert verdicts["speed.compile=model"][0] == "no proven gain"
    assert verdicts["speed.compile=model"][1].endswith(" s, and starts 59 s later")
    assert found["values"] == {"speed.channels_last": True}
    assert "  channels_last: true  # 1," in text
    assert " samples/s against " in text


def test_what_is_slower_in_the_end_is_not_written(start: Callable[..., Any]) -> None:
    together = 0

    def speed(values: dict[str, Any], _: int) -> float:
        nonlocal together
        changed = {"speed.precision", "speed.channels_last"} & values.keys()
        together += len(changed) == 2
        return 500.0 if len(changed) == 2 and together > 5 else 1000.0 + 300 * len(changed)

    found, text, _ = start(speed, "--only=speed")
    verdicts = {it["what"]: it["verdict"] for it in found["findings"] if it["verdict"] in ("kept", "dropped")}
    assert verdicts == {"speed.precision=bf16": "kept", "speed.channels_last=true": "dropped"}
    assert found["values"] == {"speed.precision": "bf16"}
    assert "channels_last" not in text
    assert found["compared"]["ratio"] == 1.3


def test_a_second_start_takes_up_the_trials_of_the_first(start: Callable[..., Any]) -> None:
    first = start(lambda it, _: 1200.0 if "speed.precision" in it else 1000.0)
    kept = Path("runs/tune/trials.jsonl")
    kept.write_text(kept.read_text() + '{"trial": \n[]\n')
    again = start(lambda it, _: 1.0, draw=DRAW)
    assert not again[2].asked
    assert again[0]["findings"] == first[0]["findings"]
    assert Path("runs/tune/tune.png").read_bytes().startswith(b"\x89PNG")
    assert not list(Path().rglob(".partial-*"))


def test_a_row_that_was_cut_costs_no_other(tmp_path: Path) -> None:
    (tmp_path / trials.FILE).write_text('{"trial": "a", "fou')
    for new in (2, 0):
        made = trials.Trials([], tmp_path, 60.0, {})
        for name in ("a", "b"):
            assert made.remember({"name": name}, lambda: {"found": 1}, 1.0) == {"found": 1}
        assert made.new == new


def test_values_of_other_stages_stay_and_all_trials_have_them(start: Callable[..., Any]) -> None:
    def speed(values: dict[str, Any], _: int) -> float:
        return float(values.get("train.micro_batch", 64) * (2 if "speed.channels_last" in values else 1))

    start(speed, "--only=speed")
    written = Path("configs/tuned.yaml").read_text()
    own = ("--train.accumulate=3",)
    found, text, machine = start(speed, "--only=batch", base=own)
    assert all(it["speed.channels_last"] is True for it in machine.asked)
    assert found["values"] == {"speed.channels_last": True, "train.micro_batch": 192, "train.accumulate": 1}
    assert written.partition("\nspeed:")[2] in text
    assert {"train:", "  accumulate: 1  # goes with micro_batch"} <= {*text.splitlines()}
    Path("configs/tuned.yaml").write_text(text + "model:\n  name: b c\n")
    _, text, machine = start(lambda *_: 1.0, "--only=speed", "--train.micro_batch=32")
    assert text.endswith('\nmodel:\n  name: "b c"\n'), "the command line has another micro-batch"
    assert "# for --config=configs/default.yaml --train.micro_batch=32. " in text
    assert all("train.accumulate" not in it for it in machine.asked)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--only=batch,typo"], "there is no stage 'typo'; stages: batch, loader, speed, lr"),
        (["--budget=soon"], "soon is no number of seconds"),
        (["--budget=3"], "error: a budget of 3 s is too small: the stage batch needs about 70 s here"),
        (["--output=configs/file"], "error: cannot write to configs/file (File exists): give another --output"),
        (["--write=no/tuned.yaml"], "error: cannot write to no (No such file or directory): give another --write"),
        (["--write=configs/x\udcff"], r"error: an option is not UTF-8 ('configs/x\udcff'): rename the file"),
        (["--config=\udcff.yaml"], r"error: an option is not UTF-8 ('--config=\udcff.yaml'): rename the file"),
        (["--write=configs"], "error: cannot write configs: it is a folder; give another --write"),
        (["--config=configs/tuned.yaml"], "cannot write configs/tuned.yaml: it is part of the config that is tuned"),
        (["--write=configs/mine.yaml"], "configs/mine.yaml is not as tune writes it, in line 2: rename it, or give"),
    ],
)
def test_bad_options_are_refused(
    start: Callable[..., Any], capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    Path("configs/file").touch()
    Path("configs/mine.yaml").write_text("# mine\ntrain: {epochs: 2}\n")
    with pytest.raises(SystemExit) as ended:
        start(lambda *_: 1000.0, *options)
    assert message in f"{ended.value}{capsys.readouterr().err}"
    assert not Path("configs/tuned.yaml").exists()


def test_speeds_that_are_shown_have_the_ratio_that_is_shown() -> None:
    compared = Compared([2292, 1455, 2087], [2448, 2386, 2851])
    assert str(compared) == "2,851 samples/s against 2,087 (3 rounds)"
    assert compared.ratio == 2851 / 2087
    assert Compared([100, 100], [300, 200]).ratio == 2


def test_learning_rates_without_a_clear_valley_are_refused() -> None:
    def suggested(*lowest: float) -> Any:
        return rate._judged([{"found": {"lowest": it, "optim.lr": it / 10}} for it in lowest], 1.0)

    assert suggested(0.2, 0.5, 0.3).values == {"optim.lr": 0.03}
    assert suggested(0.1, 0.2, 0.5).why.startswith("no clear valley: 3 seeds suggest 0.01, 0.02, 0.05")
    assert suggested(8.0, 10.0, 12.0).verdict == "no proven gain"


def test_a_signal_leaves_no_process_and_no_file(tmp_path: Path) -> None:
    mark = {"TMPDIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "TUNED": str(tmp_path)}
    options = ["--config=configs/default.yaml", "--run.processes=2"]
    program = f"from {PARENT}.tools import trial; trial.end_on_signals(); trial.run({options}, limit=60)"
    child = subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, env=os.environ | mark)

    def left() -> list[str]:
        files = [it for it in Path("/proc").glob("[0-9]*/environ") if os.access(it, os.R_OK)]
        return [it.parent.name for it in files if it.exists() and f"TUNED={tmp_path}".encode() in _read(it)]

    end = time.monotonic() + 60
    while not list(tmp_path.glob("launch-*")) and time.monotonic() < end:
        time.sleep(0.02)
    time.sleep(0.5)
    assert len(left()) > 1 or sys.platform != "linux"
    child.send_signal(signal.SIGTERM)
    assert child.wait(30) == 128 + signal.SIGTERM
    assert left() == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc/stat")
def test_other_programs_are_noticed_and_past_trials_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """The load of the last minute has both."""
    monkeypatch.setattr(os, "getloadavg", lambda: (99.0, 0.0, 0.0))
    cores = len(os.sched_getaffinity(0))
    spinning = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(cores)]
    try:
        assert re.match(rf"the machine is busy \([\d.]+ of {cores} cores are in use\)", trial.busy())
    finally:
        for child in spinning:
            child.kill()
            child.wait()
    assert "99.0" not in trial.busy()
    monkeypatch.setattr(trial, "_processor_seconds", lambda _: int("not there"))
    assert "99.0" in trial.busy()


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError:
        return b""
