"""Draws the memory that a trace of torch.profiler recorded."""

import json
import warnings
from pathlib import Path

from .atomic_file import atomic_write


def draw(trace: Path, target: Path) -> None:
    """Plot the allocated memory of each device over the time of the recorded steps, since their beginning."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        warnings.warn("no memory.png, as matplotlib is not installed", stacklevel=2)
        return
    events = json.loads(trace.read_text(encoding="utf-8", errors="replace"))["traceEvents"]
    lines: dict[str, list[tuple[float, float]]] = {}
    for event in sorted((it for it in events if it.get("name") == "[memory]"), key=lambda it: float(it["ts"])):
        found = event["args"]
        device = "host" if found["Device Type"] == 0 else f"device {found['Device Id']}"
        lines.setdefault(device, []).append((event["ts"] / 1e3, found["Total Allocated"] / 1e6))
    figure = Figure(figsize=(9, 4), layout="constrained")
    axes = figure.add_subplot()
    first = min((line[0][0] for line in lines.values()), default=0.0)
    for device, line in lines.items():
        axes.step([at - first for at, _ in line], [size for _, size in line], where="post", linewidth=1, label=device)
    axes.set_xlabel("milliseconds")
    axes.set_ylabel("allocated MB")
    axes.grid(alpha=0.3)
    if lines:
        axes.legend()
    with atomic_write(target, "give another --run.dir") as file:
        figure.savefig(file, dpi=120)
