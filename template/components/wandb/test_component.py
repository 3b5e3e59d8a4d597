"""What W&B would upload of a resumed run: each step once, to one run."""

import json
import struct
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor, nn

from .. import train as program
from ..model import build
from .support import at_step, rows, train_here

ON = "--wandb.enabled=true"


def crash(_: object) -> None:
    raise RuntimeError("crash")


def records(file: Path) -> Iterator[Any]:
    """Yield the records of a file that `wandb sync` uploads: 7 bytes, then a log in the format of LevelDB."""
    from wandb.proto.wandb_internal_pb2 import Record

    content, at, parts = file.read_bytes(), 7, b""
    while at + 7 <= len(content):
        if 32768 - at % 32768 < 7:  # the padding of a block
            at += 32768 - at % 32768
            continue
        length, kind = struct.unpack("<HB", content[at + 4 : at + 7])
        parts += content[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # a whole record, or its last part
            record = Record()
            record.ParseFromString(parts)
            parts = b""
            yield record


def tracked() -> dict[str, Tensor]:
    """Return an image and a histogram."""
    return {"image": torch.full((4, 6, 3), 7, dtype=torch.uint8), "numbers": torch.arange(9.0)}


def build_tracked(*sections: Any) -> nn.Module:
    model = build(*sections)
    object.__setattr__(model, "tracked", tracked)
    return model


def test_resumed_run_is_one_run_with_each_step_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WANDB_MODE", raising=False)
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    with mock.patch.object(program, "build", build_tracked):
        with at_step(6, crash), pytest.raises(RuntimeError, match="crash"):
            train_here(tmp_path, ON)
        train_here(tmp_path, ON)  # from step 4, so step 6 is repeated, and the validation of step 4
    identity = json.loads((tmp_path / "first/tracker-wandb.json").read_text())["id"]
    files = sorted((tmp_path / "first/wandb").glob("offline-run-*/*.wandb"))
    assert [file.stem for file in files] == [f"run-{identity}"] * 2
    found: dict[str, list[tuple[int, Any]]] = defaultdict(list)
    exits, configs = [], set()
    for record in (record for file in files for record in records(file)):
        if record.HasField("history"):
            values = {
                it.key or "/".join(it.nested_key): json.loads(it.value_json)
                for it in record.history.item
            }
            for name, value in values.items():
                found[name].append((values["_step"], value))
        if record.HasField("exit"):
            exits.append(record.exit.exit_code)
        configs |= {it.key for it in record.run.config.update}
    assert exits == [1, 0]
    assert {"train", "about"} <= configs
    for split in ("train", "val"):
        for name in rows(tmp_path, split)[0].keys() - {"split", "step"}:
            expected = [(row["step"], pytest.approx(row[name])) for row in rows(tmp_path, split)]
            assert found[f"{split}/{name}"] == expected
    assert found["val/numbers/_type"] == [(step, "histogram") for step in (4, 8, 12)]
    assert found["val/image/width"] == [(step, 6) for step in (4, 8, 12)]
