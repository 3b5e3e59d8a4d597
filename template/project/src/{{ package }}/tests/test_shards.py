"""Shards: each sample once per epoch, in one order for any number of ranks, and the same after a resume."""

import io
import json
import os
import tarfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fsspec
import numpy as np
import pytest
import torch

from .. import data, techniques
from ..config import Config, LoaderConfig
from ..distributed import World
from ..errors import UserError
from ..loaders import Loader, Plan, TrainOrder
from ..readers import shard_files, shards
from ..readers.shards import Shards
from ..techniques import datasets
from ..train import train
from .conftest import read_rows

COUNTS = (5, 0, 70, 1, 64)
TOTAL = sum(COUNTS)


def tar(names: list[str]) -> bytes:
    """Return a tar file whose samples have an image, its class, and a long name."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for name in names:
            for suffix, content in (("seg.PNG", name.encode()), ("cls", b"7" * (len(name) % 3 + 1))):
                member = tarfile.TarInfo(f"{'long' * 40}/{name}.{suffix}")
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
            archive.addfile(tarfile.TarInfo(f"._{name}.PNG"))
    return stream.getvalue()


def lines(names: list[str]) -> bytes:
    return b"\n".join(json.dumps({"name": name, "text": "ü" * len(name)}).encode() + b"\r\n" for name in names)


def parquet(names: list[str]) -> bytes:
    """Return a Parquet file of row groups of 20 rows; without pyarrow, the test is skipped."""
    pyarrow = pytest.importorskip("pyarrow")
    table = pyarrow.table({"name": pyarrow.array(names, "string"), "place": [{"x": 1.5} for _ in names]})
    stream = io.BytesIO()
    pytest.importorskip("pyarrow.parquet").write_table(table, stream, row_group_size=20)
    return stream.getvalue()


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., str]:
    """Write shards of one format, and return a pattern for them."""

    def make(suffix: str, content: Callable[[list[str]], bytes]) -> str:
        done = 0
        for number, count in enumerate(COUNTS):
            names = [str(name) for name in range(done, done + count)]
            (tmp_path / f"part-{number}.{suffix}").write_bytes(content(names))
            done += count
        return f"{tmp_path}/part-*.{suffix}"

    return make


def number(sample: dict[str, Any]) -> int:
    return int(sample["name"] if "name" in sample else sample["seg.png"])


@pytest.mark.parametrize(("suffix", "content"), [("tar", tar), ("jsonl", lines), ("parquet", parquet)])
def test_every_sample_is_read_by_its_position(
    tmp_path: Path,
    write: Callable[..., str],
    suffix: str,
    content: Callable[[list[str]], bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """From files, and through fsspec from memory, with the index of one cache."""
    pattern = write(suffix, content)
    found = Shards(pattern, number, cache_dir=tmp_path / "cache")
    assert len(found) == TOTAL
    backwards = list(range(TOTAL))[::-1]
    monkeypatch.setattr(shard_files, "OPEN", 2)
    assert found.__getitems__(backwards) == backwards
    kept = 10 if suffix == "parquet" else 2
    assert len(found.readers[os.getpid()]) == kept, (
        "of four files, two stay open; of Parquet, row groups stay in memory"
    )
    remote = fsspec.filesystem("memory")
    for file in tmp_path.glob(f"*.{suffix}"):
        remote.pipe(f"/{tmp_path.name}/{file.name}", file.read_bytes())
    other = Shards(f"memory://{tmp_path.name}/part-?*.{suffix}", cache_dir=tmp_path / "cache")
    sample: dict[str, Any] = other.__getitems__([75, 5])[1]
    assert number(sample) == 5
    if suffix == "tar":
        assert (sample["__key__"], sample["cls"]) == (f"{'long' * 40}/5", b"77")
    index = next((tmp_path / "cache").glob("shards-*/offsets.npy"))
    before = index.stat().st_mtime_ns
    Shards(pattern, cache_dir=tmp_path / "cache")
    assert index.stat().st_mtime_ns == before, "it is built once"
    (tmp_path / f"part-0.{suffix}").write_bytes(content(["0", "1"]))
    assert len(Shards(pattern, cache_dir=tmp_path / "cache")) == TOTAL - 3
    where = "row group 0" if suffix == "parquet" else "sample 4"
    found.readers.clear()  # Parquet keeps row groups in memory
    with pytest.raises(
        UserError, match=rf"part-0.{suffix}, {where}: it has changed since the run began: restore the shard"
    ):
        found.__getitems__([4])


def test_order_has_each_sample_once_within_its_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "CHUNK", 4)
    order = shards.EpochOrder(np.array([4, 4, 1, 0, 4, 3] * 3), 10, 1, 0)
    whole = order[0:99].tolist()
    assert sorted(whole) == list(range(48)) == sorted({*whole})
    for begin, end in ((0, 7), (7, 31), (31, 48), (5, 5)):
        assert order[begin:end].tolist() == whole[begin:end]
    again = shards.EpochOrder(np.array([4, 4, 1, 0, 4, 3] * 3), 10, 1, 0)
    assert again[20:30].tolist() == whole[20:30]
    others = [
        shards.EpochOrder(np.array([4, 4, 1, 0, 4, 3] * 3), 10, *place)[0:48].tolist() for place in ((1, 1), (2, 0))
    ]
    assert len({*map(tuple, [whole, *others])}) == 3
    first, second = (shards.EpochOrder(np.array([40]), 20, 1, 0)[begin : begin + 20].tolist() for begin in (0, 20))
    assert sorted(first) == [*range(20)] != first, "the samples of a window are shuffled"
    assert first != [index - 20 for index in second], "those of another window otherwise"
    chunks = {place // 16 for place in whole[:10]}
    assert len(chunks) > 1, "a window has chunks from several places"


@pytest.mark.filterwarnings("ignore:This DataLoader will create")  # on one core
@pytest.mark.parametrize(("suffix", "content"), [("jsonl", lines), ("parquet", parquet)])
def test_ranks_and_workers_share_one_order(
    tmp_path: Path, write: Callable[..., str], world: World, suffix: str, content: Callable[[list[str]], bytes]
) -> None:
    samples: Any = datasets.adapt("train", Shards(write(suffix, content), number, 32, cache_dir=tmp_path), None)
    alone = TrainOrder(Plan(TOTAL, 4, 4, 1, 20), 0, 3, 0, samples)
    expected = [batch.tolist() for batch in Loader(samples, alone, LoaderConfig(), 0, world)]
    epochs = [[index for batch in expected[begin : begin + 32] for index in batch] for begin in (0, 32)]
    assert all(len({*epoch}) == 128 for epoch in epochs)
    assert epochs[0] != epochs[1]
    ranks = [TrainOrder(Plan(TOTAL, 4, 2, 2, 20), rank, 3, 5, samples) for rank in range(2)]
    both = [
        list(Loader(samples, order, LoaderConfig(), 2, World(rank, 2, world.device)))
        for rank, order in enumerate(ranks)
    ]
    assert [batch.tolist() for step in zip(*both, strict=True) for batch in step] == expected[5 * 4 :]


@pytest.mark.filterwarnings("ignore:skipping")
def test_run_on_shards_is_resumed_within_an_epoch(
    config: Callable[..., Config], world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the samples of the project as JSON lines, of which `decode` makes tensors."""
    original: Any = techniques.load(config().data)
    if not isinstance(original.train.__getitems__([0]), tuple | list):
        pytest.skip("a batch of the project is no tuple, of which lines are written here")
    place = tmp_path / "shards"
    place.mkdir()
    for name in ("train", "val"):
        split = getattr(original, name)
        for shard in range(2):
            chosen = [split.__getitems__([index]) for index in range(20 * shard, 20 * shard + 20)]
            rows = [json.dumps({"parts": [part[0].tolist() for part in sample]}) for sample in chosen]
            (place / f"{name}-{shard}.jsonl").write_text("\n".join(rows))
    kinds = [part.dtype for part in original.train.__getitems__([0])]

    def decode(sample: dict[str, Any]) -> Any:
        return tuple(torch.tensor(part, dtype=kind) for part, kind in zip(sample["parts"], kinds, strict=True))

    def load(_: Any) -> Any:
        splits = {
            name: Shards(f"{place}/{name}-*.jsonl", decode, 16, cache_dir=tmp_path / "cache")
            for name in ("train", "val")
        }
        return SimpleNamespace(**splits, spec=original.spec, in_memory=False)

    monkeypatch.setattr(data, "load", load)
    options = [
        "--train.micro_batch=8",
        "--train.steps=9",
        "--train.eval_every=7",
        "--log.every=1",
        "--loader.workers=0",
    ]
    train(config(*options, "--run.name=whole"), world)
    train(config(*options, "--run.name=cut"), world)
    (tmp_path / "cut/checkpoints/step-00000009/manifest.json").unlink()  # as if the run had been killed before
    train(config(*options, "--run.name=cut", "--run.resume=auto"), world)
    for name in ("train", "val"):
        assert read_rows(tmp_path / "cut", name) == read_rows(tmp_path / "whole", name)


def damaged(folder: Path) -> str:
    (folder / "a.tar").write_bytes(tar(["1", "2"])[:-11000])
    return f"{folder}/a.tar"


def cut_off(folder: Path) -> str:
    """Behind a file, where tarfile finds no fault."""
    content = tar(["1", "2"])
    (folder / "a.tar").write_bytes(content[: len(content.rstrip(b"\0")) // 512 * 512 + 512])
    return f"{folder}/a.tar"


def overwritten(folder: Path) -> str:
    content = tar(["1", "2", "3"])
    middle = len(content.rstrip(b"\0")) // 1024 * 512
    (folder / "a.tar").write_bytes(content[:middle] + bytes(512) + content[middle + 512 :])
    return f"{folder}/a.tar"


def with_link(folder: Path) -> str:
    link = tarfile.TarInfo("2.png")
    link.type, link.linkname = tarfile.LNKTYPE, "1.png"
    with tarfile.open(folder / "a.tar", "w") as archive:
        archive.addfile(link)
    return f"{folder}/a.tar"


def of_two_formats(folder: Path) -> list[str]:
    names = [f"{folder}/a.tar", f"{folder}/b.jsonl"]
    for name in names:
        Path(name).touch()
    return names


def empty(folder: Path) -> Path:
    (folder / "a.jsonl").write_text("\n\n")
    return folder / "a.jsonl"


def not_json(folder: Path) -> Path:
    (folder / "a.jsonl").write_text("{}\n[1]\n{")
    return folder / "a.jsonl"


REFUSED: dict[str, tuple[Callable[[Path], Any], str]] = {
    "missing": (lambda folder: folder / "none.tar", r"no shard .*none.tar: correct the path"),
    "no match": (lambda folder: f"{folder}/*.tar", r"no shards match .*\*.tar: correct the path"),
    "packed": (lambda folder: "a.tar.gz", r"shards \*.gz cannot be read from the middle: unpack them"),
    "unknown": (lambda folder: "a.zip", r"shards are .zip, such as a.zip: they must be files of one of .tar, .jsonl"),
    "formats": (of_two_formats, r"shards are .jsonl, .tar, such as .*: they must be files of one of"),
    "folder": (lambda folder: folder, r"shards are without suffix, such as /.*: they must be files of one of .tar"),
    "absent": (lambda folder: "memory://none/a.tar", "no shard /none/a.tar: correct the path"),
    "cut off": (cut_off, r"a.tar cannot be read \(it is cut off or damaged at byte \d+\)"),
    "overwritten": (overwritten, r"a.tar cannot be read \(it is cut off or damaged at byte \d+\)"),
    "link": (with_link, r"2.png is a link, whose content is elsewhere"),
    "damaged": (damaged, r"the shard .*a.tar cannot be read \(.*\): restore or remove it"),
    "empty": (empty, r"the 1 shards .*a.jsonl have no samples: give other files"),
    "no object": (not_json, r"a.jsonl, sample 1: a line is a list, and no object: restore the shard"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_unsuitable_shards_are_refused_in_one_line(tmp_path: Path, kind: str) -> None:
    make, message = REFUSED[kind]
    with pytest.raises(UserError, match=message):
        Shards(make(tmp_path), cache_dir=tmp_path / "cache").__getitems__([0, 1])


def test_only_columns_that_are_there_are_read_from_parquet(tmp_path: Path, write: Callable[..., str]) -> None:
    pattern, cache = write("parquet", parquet), tmp_path / "cache"
    assert Shards(pattern, columns=["place.x"], cache_dir=cache).__getitems__([75, 6]) == [{"place": {"x": 1.5}}] * 2
    assert Shards(pattern, cache_dir=cache)._pieces(999) == [999], (
        "a row group, which is read as a whole, stays together"
    )
    with pytest.raises(UserError, match=r"part-3.parquet has no column nam, place_x: it has name, place"):
        Shards(pattern, columns=["nam", "name", "place_x"], cache_dir=cache).__getitems__([75])
    (tmp_path / "part-4.parquet").write_bytes(b"PAR1" + bytes(200))
    with pytest.raises(UserError, match=r"the shard .*part-4.parquet cannot be read \(.*\): restore or remove it"):
        Shards(pattern, cache_dir=cache)


def test_shard_that_is_written_anew_is_refused(tmp_path: Path) -> None:
    """Also where what is at the former place of a sample can be read."""
    file = tmp_path / "[?].tar"
    for first, second in (("1", "22"), ("1", "2")):
        file.write_bytes(tar([first * 101, second * 101]))
        found = Shards(file, cache_dir=tmp_path)
        found.index = [np.array([0, found.index[0][-1]])]
        with pytest.raises(
            UserError, match=r"\[\?\].tar, sample 0: it has changed since the run began: restore the shard"
        ):
            found.__getitems__([0])


def test_error_of_decode_names_the_sample(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"x": 1}\n{"y": 2}\n')
    found = Shards(str(tmp_path / "a.jsonl"), lambda sample: sample["x"], cache_dir=tmp_path / "cache")
    with pytest.raises(
        UserError, match=r"a.jsonl, sample 1: `decode` of the shards failed \(KeyError: 'x'\): correct it"
    ):
        found.__getitems__([0, 1])

    def refuse(sample: dict[str, Any]) -> Any:
        raise UserError("as it says")

    with pytest.raises(UserError, match="^as it says$"):
        Shards(str(tmp_path / "a.jsonl"), refuse, cache_dir=tmp_path / "cache").__getitems__([0])
    assert os.getpid() in found.readers
    assert found.__getstate__()["readers"] == {}, "open files stay in the process"
