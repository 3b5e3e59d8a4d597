"""Readers of files: formats, a pass of several readers, resume, and what is damaged."""

import io
import json
import tarfile
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from ..components.shards import JsonLines, Parquet, Tar
from ..errors import UserError


def write_lines(folder: Path) -> JsonLines:
    """Write numbers as lines into five files."""
    for file in range(5):
        lines = [json.dumps({"number": number}) for number in range(file, 30, 5)]
        (folder / f"{file}.jsonl").write_text("\n".join(lines) + "\n")
    return JsonLines(
        str(folder / "*.jsonl"),
        lambda sample: sample["number"],
        shuffle=4,
    )


@pytest.mark.parametrize("readers", [1, 5, 10])
def test_readers_share_a_pass_and_continue_with_the_next_sample(
    tmp_path: Path, readers: int
) -> None:
    shards = write_lines(tmp_path)
    assert sorted(shards) == list(range(30))
    count = 30 // readers
    seen: list[Any] = []
    for number in range(readers):
        reader = shards.reader(
            number,
            readers,
            7,
        )
        first = list(islice(reader, 2))
        other = shards.reader(
            number,
            readers,
            7,
        )
        other.load_state_dict(json.loads(json.dumps(reader.state_dict())))
        rest = list(islice(reader, count - 2))
        assert list(islice(other, count - 2)) == rest
        seen += first + rest
    assert sorted(seen) == list(range(30))
    assert seen != sorted(seen)


def test_tar_groups_files_by_name(tmp_path: Path) -> None:
    file = tmp_path / "a.tar"
    with tarfile.open(file, "w") as archive:
        for name in ("a/0.txt", "a/0.cls", "a/1.txt", "b/0.txt"):
            member = tarfile.TarInfo(name)
            member.size = len(name)
            archive.addfile(
                member,
                io.BytesIO(name.encode()),
            )
    samples = list(Tar(file))
    assert [sample["__key__"] for sample in samples] == ["a/0", "a/1", "b/0"]
    assert samples[0] == {"__key__": "a/0", "txt": b"a/0.txt", "cls": b"a/0.cls"}
    file.write_bytes(file.read_bytes()[: 512 * 4])
    with pytest.raises(UserError, match=r"^cannot read .*a\.tar \(.*\): restore it, or remove it$"):
        list(Tar(file))


def test_damaged_line_and_failing_decode_name_the_place(tmp_path: Path) -> None:
    shards = write_lines(tmp_path)
    with (tmp_path / "3.jsonl").open("a") as file:
        file.write("\n{broken\n")
    with pytest.raises(UserError, match=r"cannot decode the sample in .*3\.jsonl at \d+ \(JSON"):
        list(shards)
    with pytest.raises(UserError, match=r"0\.jsonl at 0 \(KeyError: 'other'\): correct it"):
        list(JsonLines(tmp_path / "0.jsonl", lambda sample: sample["other"]))


def test_no_files_and_no_samples_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no file matches .*\*\.tar: correct the path"):
        Tar(str(tmp_path / "*.tar"))
    (tmp_path / "empty.jsonl").touch()
    reader = JsonLines(tmp_path / "empty.jsonl").reader(
        0,
        1,
        7,
    )
    with pytest.raises(UserError, match=r"there are no samples in .*empty\.jsonl"):
        next(iter(reader))


def test_parquet_has_the_columns_of_each_row(tmp_path: Path) -> None:
    arrow = pytest.importorskip(
        "pyarrow",
        reason="needs pyarrow: pip install pyarrow",
    )
    parquet = pytest.importorskip("pyarrow.parquet")
    table = arrow.table({"a": list(range(20)), "b": ["x"] * 20})
    parquet.write_table(table, tmp_path / "a.parquet")
    shards = Parquet(
        tmp_path / "a.parquet",
        columns=["a"],
    )
    assert list(shards) == [{"a": number} for number in range(20)]
