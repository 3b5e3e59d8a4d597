"""Readers of files: exact resume in each format, damage anywhere in a tar, and URLs."""

import io
import json
import tarfile
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from engine import MakePackage, Package

arrow: Any = import_module("pyarrow")
parquet: Any = import_module("pyarrow.parquet")


@pytest.fixture(scope="module")
def p(package: MakePackage) -> Package:
    found: Package = package("mlp", "shards", "streams")
    return found


def write_tar(file: Path, numbers: range, kind: int = tarfile.PAX_FORMAT) -> None:
    """Write samples whose content is their number; some have long names."""
    with tarfile.open(file, "w", format=kind) as archive:
        folder = tarfile.TarInfo("samples")
        folder.type = tarfile.DIRTYPE
        archive.addfile(folder)
        for number in numbers:
            for name in (
                f"samples/{number:05}{'x' * (number % 3 * 100)}.txt",
                f"samples/._{number}",
            ):
                content = str(number).encode() * (1 + number % 300)
                member = tarfile.TarInfo(name)
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))


def write(folder: Path, kind: str) -> list[Path]:
    """Write three shards of 40, 25 and 1 numbers."""
    files = []
    for name, numbers in (
        ("a", range(40)),
        ("b", range(40, 65)),
        ("c", range(65, 66)),
    ):
        file = folder / f"{name}.{kind}"
        if kind == "tar":
            write_tar(file, numbers)
        elif kind == "parquet":
            table = arrow.table(
                {"number": list(numbers), "text": [str(number) for number in numbers]}
            )
            parquet.write_table(table, file, row_group_size=7)
        else:
            text = "\n".join(
                json.dumps({"number": number}) + "\n" * (number % 3) for number in numbers
            )
            file.write_text(text)  # with empty lines, and without one at the end
        files.append(file)
    return files


def read(
    p: Package,
    files: Any,
    kind: str,
    **options: Any,
) -> Any:
    """Return the shards, whose samples are numbers."""
    shards = p.__getattr__("components.shards")
    if kind == "tar":
        return shards.Tar(
            files,
            lambda sample: int(sample["__key__"].split("/")[1][:5]),
            **options,
        )
    kinds = {"jsonl": shards.JsonLines, "parquet": shards.Parquet}
    return kinds[kind](files, lambda sample: sample["number"], **options)


@pytest.mark.parametrize("kind", ["tar", "jsonl", "parquet"])
@pytest.mark.parametrize(
    ("readers", "shuffle"),
    [
        (1, 1),
        (2, 9),
        (5, 1000),
    ],
)
def test_reader_resumes_at_any_sample(
    p: Package, tmp_path: Path, kind: str, readers: int, shuffle: int
) -> None:
    shards = read(p, write(tmp_path, kind), kind, shuffle=shuffle)
    assert list(shards) == list(range(66))
    reader = shards.reader(1 % readers, readers, 3)
    states = []
    found = []
    for sample in islice(reader, 150):
        found.append(sample)
        states.append(json.dumps(reader.state_dict()))
    assert shuffle > 1 or found == (list(range(66)) * 3)[:150]
    for place in (0, 5, 8, 9, 39, 40, 64, 65, 66, 140):
        other = shards.reader(1 % readers, readers, 3)
        other.load_state_dict(json.loads(states[place]))
        assert list(islice(other, 150 - place - 1)) == found[place + 1 :]


@pytest.mark.parametrize("readers", [1, 2, 3, 7])
def test_pass_has_each_sample_once(p: Package, tmp_path: Path, readers: int) -> None:
    shards = read(p, write(tmp_path, "jsonl"), "jsonl", shuffle=10)
    found: list[list[int]] = [
        [],
        [],
        [],
    ]
    for number in range(readers):
        reader = shards.reader(number, readers, 0)
        for sample in reader:
            if reader.epoch == 3:
                break
            found[reader.epoch].append(sample)
    assert all(sorted(part) == list(range(66)) for part in found)
    assert found[0] != found[1] != found[2]


def message(p: Package, shards: Any) -> str:
    """Return the error of reading shards, or nothing."""
    try:
        assert len(list(shards)) == 6
    except p.errors.UserError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("kind", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
def test_damaged_header_or_short_tar_is_never_taken_for_the_end(
    p: Package, tmp_path: Path, kind: int
) -> None:
    file = tmp_path / "a.tar"
    write_tar(file, range(6), kind)
    content = file.read_bytes()
    found = []
    end = (
        max(number for number in range(0, len(content), 512) if any(content[number : number + 512]))
        + 512
    )
    for place in range(0, end, 512):
        noise = torch.randint(256, (512,), dtype=torch.uint8).numpy().tobytes()
        for damaged in (
            content[:place],
            content[: place + 200],
            content[:place] + noise + content[place + 512 :],
        ):
            file.write_bytes(damaged)
            found.append(message(p, read(p, file, "tar")))
    # it has 6 samples if only a content is damaged
    assert all(f" {file} " in text for text in found if text)
    assert not any("\n" in text for text in found)
    assert sum(text.startswith("cannot read") for text in found) > 2 * end / 512


@pytest.mark.parametrize("kind", ["parquet", "tar"])
@pytest.mark.parametrize("damage", ["empty", "noise", "cut", "missing"])
def test_unreadable_file_is_one_line_that_names_it(
    p: Package, tmp_path: Path, kind: str, damage: str
) -> None:
    file = write(tmp_path, kind)[1]
    shards = read(p, f"{tmp_path}/*.{kind}", kind)
    content = file.read_bytes()
    changed = {
        "empty": b"",
        "noise": bytes(range(1, 256)) * 20,
        "cut": content[: len(content) // 2],
    }
    file.write_bytes(changed.get(damage, b""))
    if damage == "missing":
        file.unlink()
    with pytest.raises(p.errors.UserError) as found:
        list(shards)
    assert str(file) in str(found.value)
    assert "\n" not in str(found.value)


def test_column_that_is_missing_is_one_line(p: Package, tmp_path: Path) -> None:
    files = write(tmp_path, "parquet")
    shards = p.__getattr__("components.shards")
    assert next(iter(shards.Parquet(files, columns=["text"]))) == {"text": "0"}
    with pytest.raises(
        p.errors.UserError,
        match=r"cannot decode the sample in .*a\.parquet at 0 \(KeyError: 'label'",
    ):
        list(
            shards.Parquet(
                files,
                lambda sample: sample["label"],
                columns=["text"],
            )
        )


def test_url_is_read_by_fsspec(p: Package, tmp_path: Path) -> None:
    system = import_module("fsspec").filesystem("memory")
    for file in write(tmp_path, "tar"):
        system.pipe(f"/bucket/{file.name}", file.read_bytes())
    shards = read(p, "memory://bucket/*.tar", "tar")
    assert shards.files[0] == "memory:///bucket/a.tar"
    assert list(shards) == list(range(66))
