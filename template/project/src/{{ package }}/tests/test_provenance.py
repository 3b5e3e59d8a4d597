"""Checkpoints say how the run came about and what the data left out; `tools/reproduce` starts it again."""

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from .. import checkpoint, data
from ..config import Config
from ..distributed import World
from ..faults import provenance, repository
from ..faults.repository import Repository
from ..techniques import datasets
from ..tools import reproduce
from ..train import train
from .conftest import main, read_rows

STEPS = ["--train.steps=2", "--train.eval_every=2", "--log.every=1"]


def git(folder: Path, *arguments: str) -> str:
    command = ["git", "-c", "user.name=a", "-c", "user.email=a@b", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout.strip()


def manifest_of(run: Path) -> dict[str, Any]:
    found = checkpoint.find(run)
    assert found is not None
    return checkpoint.read_manifest(found)


def change_record(run: Path, **values: object) -> None:
    """Change what the manifest says, as someone would who sends you a run."""
    found = checkpoint.find(run)
    assert found is not None
    manifest = checkpoint.read_manifest(found)
    manifest["provenance"] |= values
    manifest.pop("checksum", None)
    (found / "manifest.json").write_text(json.dumps(manifest))


def be_parent_of(monkeypatch: pytest.MonkeyPatch, child: Any) -> None:
    """Let the tool start a child of this kind, and take no signals."""
    monkeypatch.setattr(reproduce, "subprocess", SimpleNamespace(Popen=child))
    monkeypatch.setattr(reproduce, "signal", SimpleNamespace(**{**vars(signal), "signal": lambda *_: None}))


@pytest.mark.usefixtures("short_validation")
def test_run_is_reproduced_to_the_bit(
    tmp_path: Path,
    config: Callable[..., Config],
    world: World,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    train(config("--run.name=first", *STEPS), world)

    class Child:
        """The command, in this process."""

        def __init__(self, command: list[str], env: dict[str, str]) -> None:
            assert command[1:3] == ["-m", reproduce.PROGRAM]
            main([*command[3:], "--log.progress=false"])

        def wait(self) -> int:
            return 0

    be_parent_of(monkeypatch, Child)
    monkeypatch.setattr(reproduce, "Repository", lambda folder: type("Same", (), {"read": lambda self: ({}, b"")})())
    change_record(tmp_path / "first", git={})
    with pytest.raises(SystemExit) as ended:
        reproduce.main([str(tmp_path / "first"), "--run.name=again"])
    said = capsys.readouterr().out
    assert "nothing differs" in said
    assert said.endswith("equal to the bit: all metrics in 3 rows\n")
    assert not ended.value.code
    assert read_rows(tmp_path / "again", "train") == read_rows(tmp_path / "first", "train")
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "metrics.jsonl").write_text('{"split": "val", "step": 1, "auc": NaN}\n')
    assert reproduce.compare_rows(tmp_path / "a", tmp_path / "b") == "equal to the bit: all metrics in 1 rows"
    (tmp_path / "b" / "metrics.jsonl").write_text("")
    assert reproduce.compare_rows(tmp_path / "a", tmp_path / "b") == "not compared: no row of the same step"
    rows = (tmp_path / "again" / "metrics.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "again" / "metrics.jsonl").write_text("".join([json.dumps({**json.loads(rows[0]), "loss": 7}), "\n"]))
    assert "first difference: train loss at step 1" in reproduce.compare_rows(tmp_path / "first", tmp_path / "again")


@pytest.mark.usefixtures("short_validation")
def test_what_differs_is_said_and_a_hostile_record_does_nothing(
    tmp_path: Path,
    config: Callable[..., Config],
    world: World,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    train(config("--run.name=first", *STEPS), world)
    run = tmp_path / "first"
    hostile = {
        "command": ["touch", str(tmp_path / "executed")],
        "environment": {"LD_PRELOAD": "\x1b[2J", "OMP_NUM_THREADS": "9"},
    }
    change_record(
        run, **hostile, code="0" * 64, data=["x"], git={"commit": "$(touch x)", "diff": {"file": "../../x.diff"}}
    )
    with pytest.raises(SystemExit) as ended:
        reproduce.main([str(run), "--dry-run"])
    said = capsys.readouterr().out
    assert not ended.value.code
    for name, then in {"code": "000000000000", "data": '["x"]', "commit": "$(touch x)", "OMP_NUM_THREADS": "9"}.items():
        assert any(line.split()[:1] == [name] and then in line for line in said.splitlines()), said
    assert "\x1b" not in said
    assert "git apply" not in said
    assert {path.name for path in tmp_path.iterdir()} == {"first"}
    started: list[dict[str, str]] = []

    class Child:
        def __init__(self, command: list[str], env: dict[str, str]) -> None:
            started.append(env)

        def wait(self) -> int:
            return -9

    be_parent_of(monkeypatch, Child)
    assert reproduce.start({}, {"environment": hostile["environment"]}) == 128 + 9
    assert (started[0].get("LD_PRELOAD"), started[0]["OMP_NUM_THREADS"]) == (os.environ.get("LD_PRELOAD"), "9")
    change_record(run, ranks=16, ranks_here=8)
    with pytest.raises(SystemExit, match="the run had 16 processes, 8 on each machine: start them with your launcher"):
        reproduce.main([str(run)])


def test_commit_and_uncommitted_changes_are_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert Repository(tmp_path).read()[0] == {"commit": None, "why": "not in a git repository, or without a commit"}
    git(tmp_path, "init", "-q")
    (tmp_path / "model.py").write_text("width = 1\n")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "first")
    (tmp_path / "model.py").write_text("width = 2\n")
    (tmp_path / "new.py").write_text("")
    (tmp_path / "part").mkdir()
    monkeypatch.setenv("GIT_DIR", "/nowhere")  # as in a hook
    found, diff = Repository(tmp_path / "part").read()
    monkeypatch.delenv("GIT_DIR")
    assert found["commit"] == git(tmp_path, "rev-parse", "HEAD")
    assert found["untracked"] == ["new.py"]
    git(tmp_path, "checkout", "-q", ".")
    subprocess.run([shutil.which("git") or "git", "apply"], cwd=tmp_path, input=diff, check=True)
    assert (tmp_path / "model.py").read_text() == "width = 2\n"
    monkeypatch.setattr(repository, "MAX_DIFF", 10)
    found, diff = Repository(tmp_path).read()
    assert (found["diff"]["bytes"] > 10, diff) == (True, b"")
    slow = tmp_path / "bin" / "git"
    slow.parent.mkdir()
    slow.write_text("#!/bin/sh\nexec sleep 9\n")
    slow.chmod(0o755)
    monkeypatch.setattr(repository, "SECONDS", 0.1)
    monkeypatch.setenv("PATH", f"{slow.parent}:{os.environ['PATH']}")
    asked = Repository(tmp_path)
    processes = list(asked.running)
    assert asked.read()[0] == {"commit": None, "why": "git took more than 0 s"}
    assert all(process.returncode for process in processes), "it is not left running"
    monkeypatch.setenv("PATH", str(tmp_path / "part"))
    assert Repository(tmp_path).read()[0] == {"commit": None, "why": "git is not installed"}


@pytest.mark.usefixtures("short_validation")
def test_what_the_data_leave_out_is_said_and_recorded(
    tmp_path: Path,
    config: Callable[..., Config],
    world: World,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    load = data.load

    def with_problems(cfg: data.DataConfig) -> Any:
        loaded = load(cfg)
        found = SimpleNamespace(train=loaded.train, val=loaded.val, spec=loaded.spec)
        found.problems = ("a.png: not\nan image", "b.png: empty")
        found.train.unreadable = torch.zeros(len(found.train), dtype=torch.uint8)
        found.train.unreadable[3] = 1
        return found

    monkeypatch.setattr(data, "load", with_problems)
    monkeypatch.setenv("NCCL_API_TOKEN", "secret")
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    train(config("--run.name=first", *STEPS), world)
    said = " ".join(capsys.readouterr().out.split())
    assert "data 2 problems, such as a.png: not an image (python -m" in said
    assert "unreadable 1 of" in said
    manifest = manifest_of(tmp_path / "first")
    skipped = {"problems": 2, "first": ["a.png: not\nan image", "b.png: empty"], "unreadable": {"train": 1}}
    assert manifest["skipped"] == skipped
    environment = manifest["provenance"]["environment"]
    assert (environment["NCCL_DEBUG"], "NCCL_API_TOKEN" in environment) == ("INFO", False)
    assert manifest["provenance"]["versions"]["torch"] == torch.__version__


def test_fingerprint_is_of_the_content(config: Callable[..., Config]) -> None:
    found: Any = data.load(config().data)
    first = provenance.fingerprint(found)
    assert len(first) == 64
    assert provenance.fingerprint(data.load(config().data)) == first

    class Changed:
        """The same samples but one."""

        def __len__(self) -> int:
            return len(found.val)

        def __getitems__(self, indices: list[int]) -> Any:
            batch = [part.clone() for part in found.val.__getitems__(indices)]
            batch[0][[number == 0 for number in indices]] += 1
            return tuple(batch)

    assert provenance.fingerprint(replace(found, val=Changed())) != first
    monkey: Any = type("Broken", (), {"__len__": lambda self: 5})()
    assert provenance.fingerprint(replace(found, val=monkey)).startswith("unknown: ")


def test_fingerprint_reads_some_of_many_single_samples(config: Callable[..., Config]) -> None:
    """To collate all that fit into 16 MiB would take seconds at each start."""
    read = []

    class Single:
        """Returns one sample."""

        def __len__(self) -> int:
            return 10**6

        def __getitem__(self, index: int) -> float:
            read.append(index)
            return float(index)

    found = SimpleNamespace(train=Single(), val=Single(), spec=data.load(config().data).spec, in_memory=True)
    assert len(provenance.fingerprint(datasets.adapted(found))) == 64
    assert 1000 < len(read) < 3000
