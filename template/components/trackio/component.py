"""Trackio: on this machine, unless the environment has TRACKIO_SPACE_ID or TRACKIO_SERVER_URL."""

import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..config_base import Section
from .tracker import PROJECT, Row, Tracker


@dataclass(frozen=True)
class TrackioConfig(Section):
    """Metrics in Trackio."""

    enabled: bool = False
    """Log to Trackio: on this machine, unless the environment has TRACKIO_SPACE_ID or
    TRACKIO_SERVER_URL."""


class Trackio(Tracker):
    """Logs to one run of Trackio by its name, which a resumed run continues."""

    name = "trackio"

    def open(
        self,
        folder: Path,
        kept: dict[str, Any],
        about: dict[str, Any],
    ) -> None:
        import trackio

        # other folders may have a run of that name
        kept.setdefault("name", f"{folder.name}-{uuid.uuid4().hex[:6]}")
        quiet = {"auto_log_cpu": False, "auto_log_gpu": False, "embed": False}
        self.run = trackio.init(
            PROJECT,
            name=kept["name"],
            resume="allow",
            config=about,
            **quiet,
        )

    def send(self, row: Row) -> None:
        import trackio

        values: dict[str, Any] = dict(row.scalars)
        for name, value in row.images.items():
            values[name] = trackio.Image(value.numpy())
        for name, value in row.histograms.items():
            values[name] = trackio.Histogram(value.numpy())
        self.run.log(row.prefixed(values), step=row.step)

    def close(
        self,
        error: BaseException | None,
    ) -> None:
        self.run.finish()
