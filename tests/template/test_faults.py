"""Every kind of fault is survived, and docs/faults.md shows what benchmarks/faults.py has found."""

import pytest
from matrix import ENGINE_MODEL, EVERY, FRAMEWORKS, ROOT
from program import Project
from warm import run_python

SHOWN = ["sigterm", "sigkill", "worker-killed", "full-disk", "torn-file"]
"""Faults at each moment but the start; the others end a run as one of these does, or in a way that its tests show."""


@pytest.mark.slow
@pytest.mark.parametrize("framework", FRAMEWORKS if EVERY else FRAMEWORKS[:1])
def test_every_fault_is_survived(project: Project, framework: str) -> None:
    """`make faults` causes them on one process and on two, under DDP and under FSDP.

    What depends on the framework, where a run stops, saves, resumes and fails, is in the tests of its project.
    """
    command = ["-m", "proj.tools.faults", *([] if EVERY else SHOWN), "--parallel=1"]
    result = run_python(project(framework, ENGINE_MODEL), *command, timeout_s=500)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "every resumed run equals the uninterrupted one" in result.stdout


def test_page_shows_what_was_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import faults

    assert faults.page() == faults.PAGE.read_text(), "run python benchmarks/faults.py --page"
