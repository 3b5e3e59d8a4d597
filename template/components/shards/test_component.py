"""Readers of files: formats, a pass of several readers, resume, and what is damaged."""

import io
import json
import tarfile
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from ..components.shards import JsonLines, Parquet, Shards, Tar
from ..errors import UserError


def write_lines(folder: Path, count: int = 30, files: int = 5) -> JsonLines:
    """Write numbers as lines into several files."""
    for file in range(files):
        lines = [json.dumps({"number": number}) for number in range(file, count, files)]
        (folder / f"{file}.jsonl").write_text("\n".join(lines) + "\n")
    return JsonLines(str(folder / "*.jsonl"), lambda sample: sample["number"], shuffle=4)


def write_tar(file: Path) -> None:
    """Write three samples of two files each."""
    with tarfile.open(file, "w") as archive:
        for name in ("a/0.txt", "a/0.cls", "a/1.txt", "a/1.cls", "b/0.txt", "b/0.cls"):
            content = f"{name} content".encode()
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))


def taken(
    shards: Shards, number: int, count: int, samples: int, state: Any = None
) -> tuple[list[Any], Any]:
    """Return samples of a reader, and its state after them."""
    reader = shards.reader(number, count, 7)
    if state:
        reader.load_state_dict(json.loads(json.dumps(state)))
    found: Iterator[Any] = iter(reader)
    return list(islice(found, samples)), reader.state_dict()


@pytest.mark.parametrize("readers", [1, 5, 10])
def test_readers_share_each_pass(tmp_path: Path, readers: int) -> None:
    shards = write_lines(tmp_path)
    assert sorted(shards) == list(range(30))
    passes: list[list[int]] = [[], []]
    for number in range(readers):
        found, _ = taken(shards, number, readers, 60 // readers)
        passes[0] += found[: len(found) // 2]
        passes[1] += found[len(found) // 2 :]
    assert sorted(passes[0]) == sorted(passes[1]) == list(range(30))
    assert passes[0] != passes[1]
    assert passes[0] != sorted(passes[0])


@pytest.mark.parametrize("readers", [2, 7])
def test_reader_continues_with_the_next_sample(tmp_path: Path, readers: int) -> None:
    shards = write_lines(tmp_path)
    whole, _ = taken(shards, 1, readers, 40)
    for samples in range(40):
        first, state = taken(shards, 1, readers, samples)
        assert first + taken(shards, 1, readers, 40 - samples, state)[0] == whole


def test_tar_groups_files_by_name(tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tar")
    found = list(Tar(tmp_path / "a.tar"))
    assert [sample["__key__"] for sample in found] == ["a/0", "a/1", "b/0"]
    assert found[1] == {"__key__": "a/1", "txt": b"a/1.txt content", "cls": b"a/1.cls content"}


@pytest.mark.parametrize("place", [0, 512 * 4, 512 * 8 + 100], ids=["begin", "header", "middle"])
def test_damaged_or_short_tar_is_one_line(tmp_path: Path, place: int) -> None:
    file = tmp_path / "a.tar"
    write_tar(file)
    content = file.read_bytes()
    file.write_bytes(content[:place] + b"damaged " * 64 + content[place + 512 :])
    with pytest.raises(UserError, match=r"^cannot read .*a\.tar \(.*\): restore it, or remove it$"):
        list(Tar(file))
    file.write_bytes(content[: 512 * 4])
    with pytest.raises(UserError, match=r"cannot read .*a\.tar"):
        list(Tar(file))


def test_damaged_line_and_failing_decode_name_the_place(tmp_path: Path) -> None:
    shards = write_lines(tmp_path)
    with (tmp_path / "3.jsonl").open("a") as file:
        file.write("\n{broken\n")
    with pytest.raises(
        UserError, match=r"cannot decode the sample in .*3\.jsonl at \d+ \(JSONDecodeError"
    ):
        list(shards)
    with pytest.raises(UserError, match=r"0\.jsonl at 0 \(KeyError: 'other'\): correct it"):
        list(JsonLines(str(tmp_path / "0.jsonl"), lambda sample: sample["other"]))


def test_no_files_and_no_samples_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no file matches .*\*\.tar: correct the path"):
        Tar(str(tmp_path / "*.tar"))
    (tmp_path / "empty.jsonl").touch()
    with pytest.raises(UserError, match=r"there are no samples in .*empty\.jsonl"):
        taken(JsonLines(tmp_path / "empty.jsonl"), 0, 1, 1)


def test_parquet_has_the_columns_of_each_row(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow", reason="needs pyarrow: pip install pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    table = arrow.table({"a": list(range(20)), "b": ["x"] * 20})
    parquet.write_table(table, tmp_path / "a.parquet", row_group_size=6)
    shards = Parquet(tmp_path / "a.parquet", columns=["a"], shuffle=1)
    assert list(shards) == [{"a": number} for number in range(20)]
    assert taken(shards, 0, 1, 5, taken(shards, 0, 1, 8)[1])[0] == [
        {"a": number} for number in range(8, 13)
    ]
