"""MLflow: `mlflow.db` beside the runs, unless the environment has MLFLOW_TRACKING_URI."""

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
    """Log to MLflow: to the database `mlflow.db` beside the runs, unless the environment has
    MLFLOW_TRACKING_URI."""


class Mlflow(Tracker):
    """Logs to one run of MLflow by its id, which a resumed run continues.

    Histograms are not sent: MLflow has none.
    """

    name = "mlflow"

    def open(
        self,
        folder: Path,
        kept: dict[str, Any],
        about: dict[str, Any],
    ) -> None:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        from mlflow.tracking import MlflowClient

        with (folder.parent / ".mlflow.lock").open("a") as file, warnings.catch_warnings():
            # of sqlalchemy, in mlflow
            warnings.filterwarnings("ignore", "The ``noload`` loader", DeprecationWarning)
            fcntl.flock(file, fcntl.LOCK_EX)  # several runs may begin at once, and find no database
            database = f"sqlite:///{folder.parent}/mlflow.db"
            server = os.environ.get("MLFLOW_TRACKING_URI", database)
            self.client = MlflowClient(server)
            if "id" in kept:
                self.client.update_run(kept["id"], status="RUNNING")
            else:
                kept["id"] = self._create(folder, about)
        self.id = kept["id"]
        self.pending: list[Any] = []

    def _create(
        self,
        folder: Path,
        about: dict[str, Any],
    ) -> str:
        from mlflow.entities import Param

        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
        experiment = self.client.get_experiment_by_name(name)
        if experiment:
            number = experiment.experiment_id
        else:
            place = f"{folder.parent.as_uri()}/mlartifacts"
            own = None if "MLFLOW_TRACKING_URI" in os.environ else place
            number = self.client.create_experiment(name, artifact_location=own)
        run = self.client.create_run(number, run_name=folder.name)
        identity = str(run.info.run_id)
        params = []
        for section, keys in about.pop("config", {}).items():
            for key, value in keys.items():
                params.append(Param(f"{section}.{key}", str(value)[:500]))
        for first in range(0, len(params), AT_ONCE):
            self.client.log_batch(identity, params=params[first : first + AT_ONCE])
        for key, value in about.items():
            self.client.set_tag(identity, key, json.dumps(value)[:5000])
        return identity

    def send(self, row: Row) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        metrics = []
        for name, value in row.prefixed(row.scalars).items():
            allowed = re.sub(r"[^\w\-./: ]", "_", name)
            metrics.append(Metric(allowed, value, now, row.step))
        # a commit takes milliseconds
        operation = self.client.log_batch(self.id, metrics, synchronous=False)
        self.pending.append(operation)
        for name, image in row.prefixed(row.images).items():
            self.client.log_image(
                self.id,
                image.numpy(),
                key=name,
                step=row.step,
                synchronous=True,
            )

    def flush(self) -> None:
        for operation in self.pending:
            operation.wait()
        self.pending = []

    def close(
        self,
        error: BaseException | None,
    ) -> None:
        self.flush()
        status = "FINISHED"
        if error is not None:
            status = "KILLED" if isinstance(error, Stopped) else "FAILED"
        self.client.set_terminated(self.id, status)
