"""MLflow: `runs/mlflow.db`, unless MLFLOW_TRACKING_URI names another store.

`mlflow ui --backend-store-uri sqlite:///runs/mlflow.db` shows it.
"""

import json
import os
import re
import time

from mlflow.entities import Metric, Param, RunTag
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

from .follow import Followed, Row, only_one

AT_ONCE = 100
"""Parameters in a request, and the longest texts, are limited."""
LONGEST = 500


class Tracker:
    """Logs to one run of MLflow, by its id; values that it has are not sent again."""

    KEEPS_PLACE = False

    def __init__(self, run: Followed) -> None:
        runs = run.folder.parent
        uri = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{runs / 'mlflow.db'}"
        self.id = str(run.record.get("id", ""))
        self.known: dict[str, set[int]] = {}
        with only_one("mlflow", runs, wait=True):  # several runs may begin at once, and none finds a database
            self.client = MlflowClient(uri)
            try:
                self.client.update_run(self.id, status="RUNNING")
            except MlflowException:  # a new run, or one of another store
                self._create(run, runs.as_uri())
                run.keep(id=self.id)

    def send(self, rows: list[Row]) -> None:
        now = int(time.time() * 1000)
        metrics = [
            Metric(key, value, now, row.step)
            for row in rows
            for name, value in row.named().items()
            if row.step not in self._steps(key := re.sub(r"[^\w\-./: ]", "_", name))
        ]
        for first in range(0, len(metrics), 10 * AT_ONCE):
            self.client.log_batch(self.id, metrics[first : first + 10 * AT_ONCE])

    def close(self) -> None:
        self.client.set_terminated(self.id)

    def _steps(self, key: str) -> set[int]:
        """Return the steps of a metric that the run had when it was opened."""
        if key not in self.known:
            self.known[key] = {metric.step for metric in self.client.get_metric_history(self.id, key)}
        return self.known[key]

    def _create(self, run: Followed, parent: str) -> None:
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or run.project
        found = self.client.get_experiment_by_name(name)
        place = None if os.environ.get("MLFLOW_TRACKING_URI") else f"{parent}/mlartifacts"
        experiment = found.experiment_id if found else self.client.create_experiment(name, artifact_location=place)
        self.id = self.client.create_run(experiment, run_name=run.folder.name).info.run_id
        parameters = [Param(key, str(value)[:LONGEST]) for key, value in run.flat_config().items()]
        for first in range(0, len(parameters), AT_ONCE):
            self.client.log_batch(self.id, params=parameters[first : first + AT_ONCE])
        tags = [RunTag(key, json.dumps(value)[: 10 * LONGEST]) for key, value in run.about.items()]
        commit = str((run.about.get("git") or {}).get("commit") or "")
        self.client.log_batch(self.id, tags=[*tags, RunTag("mlflow.source.git.commit", commit)])
