"""TensorBoard: event files in the folder `tensorboard` of the run."""

import json
from dataclasses import dataclass
from pathlib import Path
from textwrap import indent
from typing import Any

from ..config_base import Section
from .tracker import Row, Tracker


@dataclass(frozen=True)
class TensorboardConfig(Section):
    """Metrics in TensorBoard."""

    enabled: bool = False
    """Write event files to `tensorboard/train` and `tensorboard/val` in the folder of the run."""


class Tensorboard(Tracker):
    """Writes each split to a folder of its own: TensorBoard shows both in one chart.

    A resumed run repeats some steps. The first row of a writer makes TensorBoard drop what its
    folder has from there.
    """

    name = "tensorboard"

    def open(
        self,
        folder: Path,
        kept: dict[str, Any],
        about: dict[str, Any],
    ) -> None:
        kept.clear()  # repeated rows are sent again
        self.folder = folder / "tensorboard"
        self.about = about
        self.writers: dict[str, Any] = {}

    def send(self, row: Row) -> None:
        if row.split not in self.writers:
            self._begin(row)
        writer = self.writers[row.split]
        for name, number in row.scalars.items():
            writer.add_scalar(name, number, row.step)
        for name, image in row.images.items():
            order = "HWC" if image.ndim == 3 else "HW"
            writer.add_image(name, image, row.step, dataformats=order)
        for name, values in row.histograms.items():
            writer.add_histogram(name, values, row.step)

    def _begin(self, row: Row) -> None:
        from torch.utils.tensorboard import SummaryWriter

        folder = self.folder / row.split
        writer = SummaryWriter(folder, purge_step=row.step, flush_secs=10)
        self.writers[row.split] = writer
        if row.split == "train":
            for name, value in self.about.items():
                text = indent(
                    json.dumps(value, indent=2),
                    "    ",
                )
                writer.add_text(name, text, row.step)

    def flush(self) -> None:
        for writer in self.writers.values():
            writer.flush()

    def close(
        self,
        error: BaseException | None,
    ) -> None:
        for writer in self.writers.values():
            writer.close()
