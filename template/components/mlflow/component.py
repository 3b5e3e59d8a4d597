"""MLflow: the database `mlflow.db` beside the runs, unless the environment has MLFLOW_TRACKING_URI."""

import fcntl
import json
import os
import re
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..config_base import Section
from ..errors import Stopped
from .tracker import PROJECT, Row, Tracker

AT_ONCE = 100
"""Parameters in one request."""


@dataclass(frozen=True)
class MlflowConfig(Section):
    """Metrics in MLflow."""

    enabled: bool = False
    """Log to MLflow: to the database `mlflow.db` beside the runs, unless the environment has MLFLOW_TRACKING_URI."""


class Mlflow(Tracker):
    """Logs to one run of MLflow by its id, which a resumed run continues.

    Histograms are not sent: MLflow has none.
    """

    name = "mlflow"

    def open(self, folder: Path, kept: dict[str, Any], about: dict[str, Any]) -> None:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        from mlflow.tracking import MlflowClient

        with (folder.parent / ".mlflow.lock").open("a") as file, warnings.catch_warnings():
            # of sqlalchemy, in mlflow
            warnings.filterwarnings("ignore", "The ``noload`` loader", DeprecationWarning)
            fcntl.flock(file, fcntl.LOCK_EX)  # several runs may begin at once, and find no database
            self.client = MlflowClient(
                os.environ.get("MLFLOW_TRACKING_URI", f"sqlite:///{folder.parent}/mlflow.db")
            )
            if "id" in kept:
                self.client.update_run(kept["id"], status="RUNNING")
            else:
                kept["id"] = self._create(folder, about)
        self.id, self.pending = kept["id"], list[Any]()

    def _create(self, folder: Path, about: dict[str, Any]) -> str:
        from mlflow.entities import Param

        experiment, place = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT), None
        if "MLFLOW_TRACKING_URI" not in os.environ:
            place = f"{folder.parent.as_uri()}/mlartifacts"
        found = self.client.get_experiment_by_name(experiment)
        number = (
            found.experiment_id
            if found
            else self.client.create_experiment(experiment, artifact_location=place)
        )
        identity = str(self.client.create_run(number, run_name=folder.name).info.run_id)
        sections = about.pop("config", {}).items()
        options = {
            f"{section}.{key}": str(value)[:500]
            for section, keys in sections
            for key, value in keys.items()
        }
        params = [Param(key, value) for key, value in options.items()]
        for first in range(0, len(params), AT_ONCE):
            self.client.log_batch(identity, params=params[first : first + AT_ONCE])
        for key, value in about.items():
            self.client.set_tag(identity, key, json.dumps(value)[:5000])
        return identity

    def send(self, row: Row) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        values = {
            re.sub(r"[^\w\-./: ]", "_", name): value
            for name, value in row.prefixed(row.scalars).items()
        }
        metrics = [Metric(name, value, now, row.step) for name, value in values.items()]
        # a commit takes milliseconds
        self.pending.append(self.client.log_batch(self.id, metrics, synchronous=False))
        for name, image in row.prefixed(row.images).items():
            self.client.log_image(self.id, image.numpy(), key=name, step=row.step, synchronous=True)

    def flush(self) -> None:
        for operation in self.pending:
            operation.wait()
        self.pending = []

    def close(self, error: BaseException | None) -> None:
        self.flush()
        status = (
            "FINISHED" if error is None else "KILLED" if isinstance(error, Stopped) else "FAILED"
        )
        self.client.set_terminated(self.id, status)
