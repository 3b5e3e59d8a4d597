"""MLflow has each step of a resumed run once, in one run."""

import json
from pathlib import Path

import pytest

from .support import rows
from .test_tracker import crash_and_resume


def test_resumed_run_is_one_run_with_each_step_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow.tracking import MlflowClient

    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    crash_and_resume(tmp_path, "--mlflow.enabled=true")
    client = MlflowClient(f"sqlite:///{tmp_path}/mlflow.db")
    experiment = client.get_experiment_by_name(__name__.split(".")[0])
    (run,) = client.search_runs([experiment.experiment_id])
    kept = json.loads((tmp_path / "first/tracker-mlflow.json").read_text())
    assert run.info.run_id == kept["id"]
    assert run.info.status == "FINISHED"
    assert run.info.run_name == "first"
    assert run.data.params["train.steps"] == "12"
    assert "torch" in run.data.tags["versions"]
    for split in ("train", "val"):
        metrics = client.get_metric_history(
            run.info.run_id,
            f"{split}/loss",
        )
        steps = [row["step"] for row in rows(tmp_path, split)]
        assert [metric.step for metric in metrics] == steps
    last = rows(
        tmp_path,
        "train",
    )[-1]
    assert run.data.metrics["train/loss"] == last["loss"]
    assert run.data.metrics["val/seven"] == 7
    images = [file.name.split("+")[2] for file in (tmp_path / "mlartifacts").rglob("*.png")]
    assert sorted(images) == [
        "12",
        "4",
        "8",
    ]
