"""What can be rendered, discovered from the template: no list here needs a new part's name."""

import itertools
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[1]
QUESTIONS: dict[str, Any] = yaml.safe_load((ROOT / "copier.yml").read_text())
MODELS: list[str] = list(QUESTIONS["models"]["default"])
FRAMEWORKS: list[str] = list(QUESTIONS["frameworks"]["default"])
PAIRS = list(itertools.product(FRAMEWORKS, MODELS))
HARDWARE: dict[str, list[str]] = {
    "cpu": ["--gpus", "0"],
    "gpu": ["--gpus", "1", "--tensor-cores", "fp16"],
    "gpus": ["--gpus", "4", "--tensor-cores", "bf16", "--launchers", "slurm"],
    "nodes": ["--gpus", "8", "--tensor-cores", "fp8", "--nodes", "2", "--launchers", "multinode,slurm"],
}
