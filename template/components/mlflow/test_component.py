"""MLflow has each step of a resumed run once, in one run."""

import json
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor, nn

from .. import train as program
from ..model import build
from .support import at_step, rows, train_here

ON = "--mlflow.enabled=true"


def crash(_: object) -> None:
    raise RuntimeError("crash")


def tracked() -> dict[str, Tensor]:
    """Return an image and a scalar."""
    return {"image": torch.full((4, 6, 3), 7, dtype=torch.uint8), "seven": torch.tensor(7)}


def build_tracked(*sections: Any) -> nn.Module:
    model = build(*sections)
    object.__setattr__(model, "tracked", tracked)
    return model


def test_resumed_run_is_one_run_with_each_step_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow.tracking import MlflowClient

    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    with mock.patch.object(program, "build", build_tracked):
        with at_step(6, crash), pytest.raises(RuntimeError, match="crash"):
            train_here(tmp_path, ON)
        client = MlflowClient(f"sqlite:///{tmp_path}/mlflow.db")
        identity = json.loads((tmp_path / "first/tracker-mlflow.json").read_text())["id"]
        assert client.get_run(identity).info.status == "FAILED"
        # from step 4, so step 6 is repeated, and the validation of step 4
        train_here(tmp_path, ON, "--optim.lr=0.002")
    experiment = client.get_experiment_by_name(__name__.split(".")[0])
    (run,) = client.search_runs([experiment.experiment_id])
    assert (run.info.run_id, run.info.status) == (identity, "FINISHED")
    assert run.info.run_name == "first"
    assert run.data.params["train.steps"] == "12"
    assert "torch" in run.data.tags["versions"]
    for split in ("train", "val"):
        for name in rows(tmp_path, split)[0].keys() - {"split", "step"}:
            found = [
                metric.step
                for metric in client.get_metric_history(run.info.run_id, f"{split}/{name}")
            ]
            assert found == [row["step"] for row in rows(tmp_path, split)]
    last = rows(tmp_path, "train")[-1]
    assert run.data.metrics["train/loss"] == last["loss"]
    assert run.data.metrics["val/seven"] == 7
    images = [file.name.split("+")[:3] for file in (tmp_path / "mlartifacts").rglob("*.png")]
    assert sorted(images) == [["val~image", "step", step] for step in ("12", "4", "8")]
