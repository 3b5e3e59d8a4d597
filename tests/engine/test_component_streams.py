"""Streams: exact resume, disjoint ranks, other numbers of readers."""

import fcntl
import json
import signal
import sys
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
from engine import MakePackage, Package, equal, rows, saved
from warm import run_python

CHANGED = "--run.allow_changes=true"
DATA = '''
"""Numbers of samples, as shards or as a stream; each rank notes those that it trains on."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils.data import IterableDataset, get_worker_info

from .config_base import Section


@dataclass(frozen=True)
class DataConfig(Section):
    """The samples."""

    kind: Literal["shards", "stateful", "plain", "split"] = "shards"
    """What the dataset is."""
    path: str = ""
    """The shards."""
    notes: str = ""
    """File of the numbers."""


@dataclass(frozen=True)
class Spec:
    """What the model needs to know."""

    inputs: int = 4


def sample(number: int) -> tuple[Tensor, Tensor]:
    """Return a sample; its number is the first input."""
    return torch.tensor([number, 1.0, 2.0, 3.0]), torch.tensor(number % 7 / 7)


class Plain(IterableDataset[Any]):
    """Counts to 50."""

    def __iter__(self) -> Any:
        return map(sample, range(50))


class Stateful(Plain):
    """Continues where it was."""

    def __init__(self) -> None:
        self.next = self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Begin at another number."""
        self.epoch = epoch

    def __iter__(self) -> Any:
        while self.next < 50:
            self.next += 1
            yield sample(self.next - 1 + 100 * self.epoch)
        self.next = 0

    def state_dict(self) -> dict[str, int]:
        """Return the next number."""
        return {"next": self.next}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Continue there."""
        self.next = state["next"]


class Split(Stateful):
    """Gives each worker its own numbers."""

    def __iter__(self) -> Any:
        info = get_worker_info()
        while self.next < 50:
            self.next += 1
            yield sample(1000 * info.id + self.next)
        self.next = 0


def load(cfg: DataConfig) -> tuple[Any, Any, Spec]:
    """Return the stream, and few samples for validation."""
    from .components.shards import JsonLines

    kinds = {"stateful": Stateful, "plain": Plain, "split": Split}
    train = JsonLines(cfg.path, sample, shuffle=6) if cfg.kind == "shards" else kinds[cfg.kind]()
    return train, [sample(number) for number in range(7)], Spec()


class Prepare(nn.Module):
    """Notes the numbers of a batch."""

    def __init__(self, spec: Spec, cfg: DataConfig) -> None:
        super().__init__()
        self.notes = cfg.notes

    def forward(self, batch: Any, training: bool, generator: torch.Generator) -> Any:
        """Return a batch of small numbers."""
        if training and self.notes:
            with Path(self.notes + os.environ.get("RANK", "0")).open("a") as file:
                file.write(" ".join(str(int(number)) for number in batch[0][:, 0]) + "\\n")
        return batch[0] / 50, batch[1]
'''


@pytest.fixture(scope="module")
def p(package: MakePackage, tmp_path_factory: pytest.TempPathFactory) -> Package:
    """Return a project whose training set is a stream."""
    found: Package = package("mlp", "shards", "streams").tiny(tmp_path_factory.mktemp("streams"))
    (found.root / "src" / found.name / "data.py").write_text(DATA)
    sys.path.insert(0, str(found.root / "src"))
    return found


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the pattern of four shards of 60 numbers."""
    folder = tmp_path_factory.mktemp("shards")
    for file in range(4):
        (folder / f"{file}.jsonl").write_text("\n".join(map(str, range(15 * file, 15 * file + 15))))
    return str(folder / "*.jsonl")


def options(shards: str, *more: str) -> list[str]:
    found = [
        "--streams.enabled=true",
        "--streams.epoch_samples=60",
        "--train.batch_size=4",
        f"--data.path={shards}",
    ]
    return [*found, "--train.steps=8", "--train.eval_every=4", *more]


def notes(folder: Path, rank: int = 0) -> list[list[int]]:
    """Return the numbers of each micro-batch of a rank."""
    return [
        list(map(int, line.split()))
        for line in Path(f"{folder}/notes{rank}").read_text().splitlines()
    ]


def noted(folder: Path) -> str:
    folder.mkdir(exist_ok=True)
    return f"--data.notes={folder}/notes"


def wait_for_lock(file: Path) -> None:
    """Wait until the workers of a killed process, which inherit its lock, have ended."""
    with file.open() as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)


KILLED_IN_STEP_6 = """
import os
import signal

import torch
from {0} import distributed, train

def kill_or_seed(world, seed, step, micro):
    if step == 6 and micro == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return torch.default_generator

distributed.seed_batch = kill_or_seed
train.main()
"""


@pytest.mark.parametrize("workers", [0, 2])
def test_killed_run_ends_as_an_uninterrupted_one(
    p: Package, tmp_path: Path, shards: str, workers: int
) -> None:
    chosen = options(
        shards,
        "--train.gradient_accumulation_steps=2",
        "--model.dropout=0",
        f"--loader.num_workers={workers}",
    )
    p.train_here(tmp_path / "whole", *chosen, noted(tmp_path / "whole"))
    program = tmp_path / "program.py"
    program.write_text(KILLED_IN_STEP_6.format(p.name))
    arguments = p.arguments(tmp_path / "killed", *chosen)
    run_python(p.root, str(program), *arguments, status=-signal.SIGKILL)
    wait_for_lock(tmp_path / "killed/a/.lock")
    assert saved(tmp_path / "killed")["step"] == 4
    p.train_here(
        tmp_path / "killed",
        *chosen,
        noted(tmp_path / "killed"),
        CHANGED,
    )
    assert notes(tmp_path / "killed") == notes(tmp_path / "whole")[8:]
    assert equal(saved(tmp_path / "killed"), saved(tmp_path / "whole"))
    assert rows(tmp_path / "killed") == rows(tmp_path / "whole")


@pytest.mark.parametrize("kind", ["shards", "stateful", "plain"])
def test_other_number_of_workers_has_the_same_samples(
    p: Package, tmp_path: Path, shards: str, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen = options(shards, f"--data.kind={kind}", "--streams.readers=4")
    p.train_here(tmp_path / "whole", *chosen, noted(tmp_path / "whole"))
    whole = notes(tmp_path / "whole")
    for steps, workers in ((3, 2), (5, 0), (8, 1)):
        chosen += [f"--train.steps={steps}", f"--loader.num_workers={workers}"]
        p.train_here(
            tmp_path / "parts",
            *chosen,
            noted(tmp_path / "parts"),
            CHANGED,
        )
    assert notes(tmp_path / "parts") == whole
    assert len({*chain.from_iterable(whole)}) == 32  # of different readers
    capsys.readouterr()
    p.evaluate.load_run(tmp_path / "parts/a", torch.device("cpu"))
    assert capsys.readouterr().err == ""  # a stream has no number of samples


def test_batches_that_were_only_prefetched_are_trained_on_after_a_resume(
    p: Package, tmp_path: Path, shards: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = p.loader.Loader.__iter__

    def ahead(loader: Any) -> Iterator[Any]:
        last = None
        for batch in plain(loader):
            if last is not None:
                yield last
            last = batch
        if last is not None:
            yield last

    monkeypatch.setattr(p.loader.Loader, "__iter__", ahead)
    chosen = options(shards, "--train.gradient_accumulation_steps=2", "--loader.num_workers=2")
    p.train_here(tmp_path / "whole", *chosen, noted(tmp_path / "whole"))
    for steps in ("3", "8"):
        p.train_here(
            tmp_path / "parts",
            *chosen,
            f"--train.steps={steps}",
            noted(tmp_path / "parts"),
            CHANGED,
        )
    assert notes(tmp_path / "parts") == notes(tmp_path / "whole")


def test_two_ranks_have_disjoint_samples_and_one_rank_continues(
    p: Package, tmp_path: Path, shards: str
) -> None:
    chosen = options(shards, "--train.global_batch_size=8", "--train.eval_every=100")
    p.finish(
        tmp_path / "two",
        *chosen,
        noted(tmp_path / "two"),
        "--train.steps=7",
        ranks=2,
    )
    first = notes(tmp_path / "two")
    second = notes(tmp_path / "two", 1)
    assert len(first) == len(second) == 7
    assert len({*chain.from_iterable(first + second)}) == 56
    p.train_here(
        tmp_path / "one",
        *chosen,
        noted(tmp_path / "one"),
        "--streams.readers=2",
    )
    one = notes(tmp_path / "one")
    assert one[:14] == [*chain.from_iterable(zip(first, second, strict=True))]
    p.train_here(
        tmp_path / "two",
        *chosen,
        noted(tmp_path / "two"),
        CHANGED,
    )
    assert notes(tmp_path / "two")[7:] == one[14:]


def test_dataset_that_splits_itself_keeps_its_workers(
    p: Package, tmp_path: Path, shards: str
) -> None:
    chosen = options(
        shards, "--data.kind=split", "--streams.split=dataset", "--loader.num_workers=2"
    )
    for steps in ("3", "8"):
        p.train_here(tmp_path, *chosen, f"--train.steps={steps}", noted(tmp_path), CHANGED)
    found = [batch[0] for batch in notes(tmp_path)]
    assert found == [1, 1001, 5, 1005, 9, 1009, 13, 1013]
    with pytest.raises(
        p.errors.UserError, match=r"streams\.split is dataset: use 2 ranks x loader\.num_workers"
    ):
        p.train_here(tmp_path, *chosen, "--train.steps=9", "--loader.num_workers=1", CHANGED)


def test_readers_that_ranks_cannot_share_are_one_line(p: Package, shards: str) -> None:
    cfg = p.options(*options(shards, "--streams.readers=3"))
    world = p.distributed.World(0, 2, torch.device("cpu"))
    stream = p.__getattr__("components.streams").Stream(
        range(9),
        cfg.streams,
        world,
    )
    with pytest.raises(
        p.errors.UserError,
        match=r"^3 readers \(streams\.readers\) cannot be shared by 2 ranks: use a",
    ):
        next(stream.batches(cfg.loader, 0, False))


def test_wait_for_a_worker_has_a_limit(
    p: Package, shards: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cfg = p.options(*options(shards))
    train_set, _, _ = p.data.load(cfg.data)
    limits: list[float] = []

    def load(*_: Any, timeout: float, **named: Any) -> list[Any]:
        limits.append(timeout)
        return []

    monkeypatch.setattr(p.__getattr__("components.streams"), "DataLoader", load)
    world = p.distributed.World(0, 1, torch.device("cpu"))
    stream = p.__getattr__("components.streams").Stream(train_set, cfg.streams, world)
    for workers in (0, 1):
        list(stream.batches(cfg.loader, workers, False))
    assert limits == [0, 600]


def test_damaged_shard_in_a_worker_is_one_line(
    p: Package, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, text in (("a", "1\n2\n3\n4\n" * 4), ("b", "1\n2\n{broken\n" * 4)):
        (tmp_path / f"{name}.jsonl").write_text(text)
    with pytest.raises(SystemExit), p.errors.one_line():
        p.train_here(tmp_path, *options(f"{tmp_path}/*.jsonl", "--loader.num_workers=2"))
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith(
        f"error: cannot decode the sample in {tmp_path}/b.jsonl at 4 (JSONDecodeError: "
    )


def test_few_samples_for_many_readers_are_one_line(p: Package, tmp_path: Path, shards: str) -> None:
    with pytest.raises(
        p.errors.UserError, match="Plain has 50 samples for 51 readers: set streams.readers"
    ):
        p.train_here(tmp_path, *options(shards, "--data.kind=plain", "--streams.readers=51"))


def test_state_is_one_string_of_few_bytes(p: Package, tmp_path: Path, shards: str) -> None:
    p.train_here(tmp_path, *options(shards, "--streams.readers=4"))
    state = saved(tmp_path)["components"]["streams"]
    assert state["consumed"] == 8
    readers = [json.loads(text) for text in json.loads(state["readers"])]
    assert [reader["epoch"] for reader in readers] == [0, 0, 0, 0]
    assert len(state["readers"]) < 500
