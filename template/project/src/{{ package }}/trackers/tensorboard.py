"""TensorBoard: events in the folder `tensorboard` of the run. They are written anew when a run is resumed."""

import json
import time
from typing import Any

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from .follow import Followed, Row

SUFFIX = ".metrics"
"""Of our own files, which are replaced; you may have others there."""


class Tracker:
    """Writes scalars, and the config and the environment as text."""

    KEEPS_PLACE = False

    def __init__(self, run: Followed) -> None:
        folder = run.folder / "tensorboard"
        folder.mkdir(exist_ok=True)
        for old in folder.glob(f"*{SUFFIX}"):
            old.unlink()
        self.writer: Any = EventFileWriter(str(folder), filename_suffix=SUFFIX)
        # What a TensorBoard that is running has read from older files, it drops here.
        self._add(Event(step=0, session_log=SessionLog(status=SessionLog.START)))
        for tag, values in (("config", run.config), ("environment", run.about)):
            text = "".join(f"    {line}\n" for line in json.dumps(values, indent=2).splitlines())
            self._add(Event(step=0, summary=Summary(value=[_text(tag, text)])))
        self.writer.flush()

    def send(self, rows: list[Row]) -> None:
        for row in rows:
            values = [Summary.Value(tag=tag, simple_value=value) for tag, value in row.named().items()]
            self._add(Event(step=row.step, summary=Summary(value=values)))
        self.writer.flush()

    def close(self) -> None:
        self.writer.close()

    def _add(self, event: Any) -> None:
        event.wall_time = time.time()
        self.writer.add_event(event)


def _text(tag: str, text: str) -> Any:
    """Return a text for TensorBoard's plugin of that name, which renders it as Markdown."""
    metadata = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="text"))
    return Summary.Value(tag=tag, metadata=metadata, tensor=TensorProto(dtype="DT_STRING", string_val=[text.encode()]))
