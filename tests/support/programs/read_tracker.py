"""Print what a tracker has of a run of the project `proj`, as JSON: its metrics, each as [step, value]: TRACKER RUN."""

import json
import struct
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def read_tensorboard(run: Path, record: dict[str, Any]) -> Iterator[tuple[str, int, float]]:
    """Without dropping what a resumed run has made again."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(run / "tensorboard"), {"scalars": 0}, purge_orphaned_data=False).Reload()
    for tag in found.Tags()["scalars"]:
        yield from ((tag, event.step, event.value) for event in found.Scalars(tag))


def read_trackio(run: Path, record: dict[str, Any]) -> Iterator[tuple[str, int, float]]:
    import trackio
    from trackio.sqlite_storage import SQLiteStorage

    found = [it for it in trackio.Api().runs("proj") if it.name == record["name"]]
    assert len(found) == 1
    for row in SQLiteStorage.get_logs("proj", record["name"], run_id=found[0].id):
        names = row.keys() - {"step", "timestamp"}
        yield from ((name, row["step"], row[name]) for name in names)


def read_mlflow(run: Path, record: dict[str, Any]) -> Iterator[tuple[str, int, float]]:
    from mlflow.tracking import MlflowClient

    client = MlflowClient(f"sqlite:///{run.parent.absolute()}/mlflow.db")
    for key in client.get_run(record["id"]).data.metrics:
        yield from ((key, it.step, it.value) for it in client.get_metric_history(record["id"], key))


def read_wandb(run: Path, record: dict[str, Any]) -> Iterator[tuple[str, int, float]]:
    """From the files that `wandb sync` would send, one per start of the run: a log in the format of LevelDB."""
    from wandb.proto.wandb_internal_pb2 import Record

    for file in sorted(run.glob("wandb/offline-run-*/*.wandb")):
        assert file.stem == f"run-{record['id']}"
        content, at, parts = file.read_bytes(), 7, b""
        while at + 7 <= len(content):
            if 32768 - at % 32768 < 7:
                at += 32768 - at % 32768
                continue
            length, kind = struct.unpack("<HB", content[at + 4 : at + 7])
            parts += content[at + 7 : at + 7 + length]
            at += 7 + length
            if kind in (1, 4):  # whole, or the last part
                message = Record()
                message.ParseFromString(parts)
                parts = b""
                if message.HasField("history"):
                    values = {
                        it.key or "/".join(it.nested_key): json.loads(it.value_json) for it in message.history.item
                    }
                    step = values.pop("_step")
                    yield from ((name, step, value) for name, value in values.items() if not name.startswith("_"))


name, folder = sys.argv[1], Path(sys.argv[2])
kept = folder / f"tracker-{name}.json"
known = json.loads(kept.read_text()) if kept.exists() else {}
metrics = defaultdict(list)
for metric, at_step, number in globals()[f"read_{name}"](folder, known):
    metrics[metric].append([at_step, number])
print(json.dumps(metrics))
