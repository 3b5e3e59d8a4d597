"""Trackio, which keeps its runs on this machine: `trackio show`.

https://github.com/gradio-app/trackio. With TRACKIO_SPACE_ID or TRACKIO_SERVER_URL they are sent there.
"""

import os
import uuid

import trackio

from .follow import Followed, Row


class Tracker:
    """Logs to one run of Trackio; a local one is written anew when the run is resumed."""

    def __init__(self, run: Followed) -> None:
        self.KEEPS_PLACE = bool(os.environ.get("TRACKIO_SPACE_ID") or os.environ.get("TRACKIO_SERVER_URL"))
        name = run.record.get("name") or f"{run.folder.name}-{uuid.uuid4().hex[:6]}"  # a run is found by its name
        run.keep(name=name)
        if not self.KEEPS_PLACE:
            _delete(run.project, name)
        about = {"folder": str(run.folder), "config": run.config, **run.about}
        quiet = {"auto_log_cpu": False, "auto_log_gpu": False, "embed": False}
        self.run = trackio.init(run.project, name=name, resume="allow", config=about, **quiet)

    def send(self, rows: list[Row]) -> None:
        for row in rows:
            self.run.log(row.named(), step=row.step)

    def close(self) -> None:
        self.run.finish()


def _delete(project: str, name: str) -> None:
    try:
        runs = list(trackio.Api().runs(project))
    except ValueError:  # there is no such project yet
        return
    for run in runs:
        if run.name == name:
            run.delete()
