"""What W&B would upload of a resumed run: each step once, to one run."""

import importlib
import json
import struct
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from engine import MakePackage, rows


def records(file: Path) -> Iterator[Any]:
    """Yield what `wandb sync` uploads of a file: 7 bytes, then a log in LevelDB's format."""
    from wandb.proto.wandb_internal_pb2 import Record

    content = file.read_bytes()
    place = 7
    parts = b""
    while place + 7 <= len(content):
        rest = 32768 - place % 32768
        if rest < 7:  # the padding of a block
            place += rest
            continue
        length, kind = struct.unpack(
            "<HB",
            content[place + 4 : place + 7],
        )
        place += 7 + length
        parts += content[place - length : place]
        if kind in (1, 4):  # a whole record, or its last part
            record = Record()
            record.ParseFromString(parts)
            parts = b""
            yield record


def ended(file: Path) -> bool:
    """Whether the record of the exit status was written."""
    return any(record.HasField("exit") for record in records(file))


def test_resumed_run_is_one_run_with_each_step_once(
    package: MakePackage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    p = package("mlp", "tracker", "wandb")
    test_tracker = importlib.import_module(f"{p.name}.tests.test_tracker")
    monkeypatch.delenv("WANDB_MODE", raising=False)
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    test_tracker.crash_and_resume(tmp_path, "--wandb.enabled=true")
    folder = tmp_path / "first"
    kept = json.loads((folder / "tracker-wandb.json").read_text())
    files = sorted(folder.glob("wandb/offline-run-*/*.wandb"))
    assert [file.stem for file in files] == [f"run-{kept['id']}"] * 2
    deadline = time.monotonic() + 60
    # wandb's own process may write its last record after `finish` has returned
    while not ended(files[1]) and time.monotonic() < deadline:
        time.sleep(0.1)
    sent: dict[str, list[Any]] = defaultdict(list)
    exits = []
    both = [*records(files[0]), *records(files[1])]
    for record in both:
        for item in record.history.item:
            name = item.key or "/".join(item.nested_key)
            sent[name].append(json.loads(item.value_json))
        for item in record.run.config.update:
            sent["config"].append(item.key)
        if record.HasField("exit"):
            exits.append(record.exit.exit_code)
    assert exits == [1, 0]
    assert {"train", "about"} <= set(sent["config"])
    for split in ("train", "val"):
        expected = rows(tmp_path, split, "first")
        losses = [row["loss"] for row in expected]
        assert sent[f"{split}/loss"] == pytest.approx(losses)
    assert sent["val/numbers/_type"] == ["histogram"] * 3
    assert sent["val/image/width"] == [6] * 3
