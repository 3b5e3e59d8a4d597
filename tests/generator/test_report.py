"""`fastproj report` on real trainings: planted bottlenecks; running, killed, resumed runs."""

import os
import re
import time
from html.parser import HTMLParser
from pathlib import Path

import pytest
from matrix import ENGINE_MODEL, FRAMEWORKS, tiers
from program import LIMIT_S, Fastproj, Project
from trained import slow_project, start_training, train

pytestmark = pytest.mark.slow
KEYS = {"lightning": ("data.num_workers", "trainer.val_check_interval")}
LOADED = {"img", "script", "link", "iframe", "object", "embed", "base"}


class Loaded(HTMLParser):
    """Collects what a page would load."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.figures = 0

    def handle_starttag(
        self,
        tag: str,
        attrs: list[tuple[str, str | None]],
    ) -> None:
        self.figures += tag == "figure"
        self.found += [tag] if tag in LOADED else []
        self.found += [
            str(value) for name, value in attrs if name in ("src", "href") or "http" in str(value)
        ]


def check_page(page: Path) -> str:
    """Check that a page is whole and loads nothing; return its text."""
    text = page.read_text()
    parser = Loaded()
    parser.feed(text)
    assert text.endswith("</html>\n")
    assert [it for it in parser.found if it not in ("Content-Security-Policy",)] == []
    assert not re.search(r"url\((?!#)|@import|https?://", text)
    assert parser.figures >= 4
    return text


@pytest.mark.parametrize("framework", tiers(FRAMEWORKS[:1], FRAMEWORKS[1:]))
def test_bottlenecks_are_named(
    framework: str, project: Project, fastproj: Fastproj, tmp_path: Path
) -> None:
    workers, every = KEYS.get(framework, ("loader.num_workers", "train.eval_every"))
    original = project(framework, ENGINE_MODEL)
    for name, train_s, val_s, interval in (("loader", 0.06, 0.0, 40), ("validation", 0.0, 0.2, 10)):
        (tmp_path / name).mkdir()
        folder = slow_project(original, tmp_path / name, train_s, val_s)
        train(folder, framework, name, 40, every=interval)
        result = fastproj("report", cwd=folder)
        assert re.search("^steps +40 of 40$", result.stdout, re.M)
        if name == "loader":
            assert re.search(
                "^The loader is the bottleneck: data wait [4-9].%", result.stdout, re.M
            ), result.stdout
            assert f"try {workers} 4 (now " in result.stdout
            assert "\nValidation" not in result.stdout
        else:
            assert re.search(r"^Validation.* takes? [4-9].% of the time", result.stdout, re.M), (
                result.stdout
            )
            assert f"raise {every} (now 10)" in result.stdout
        text = check_page(folder / "runs" / name / "report.html")
        assert "2.13" in text, "the version of torch"
        assert list((folder / "runs").rglob("*.partial")) == []


def test_running_killed_and_resumed_run(
    project: Project, fastproj: Fastproj, tmp_path: Path
) -> None:
    folder = slow_project(
        project(FRAMEWORKS[0], ENGINE_MODEL),
        tmp_path,
        0.01,
        0.0,
    )
    metrics = folder / "runs/first/metrics.jsonl"
    started = start_training(folder, FRAMEWORKS[0], "first", 100_000)
    try:
        wait_for_rows(metrics, 9)
        result = fastproj("report", cwd=folder)
        assert started.running()
    finally:
        started.kill()
    assert result.returncode == 0, result.stderr
    assert re.search(
        r"has not finished: step \d+ of 100,000; .* so it may still train", result.stdout
    )
    assert "resumed" not in result.stdout
    kept = len(metrics.read_text().splitlines())
    os.utime(metrics, (time.time() - 7200, time.time() - 7200))
    result = fastproj("report", "first", cwd=folder)
    assert "its last row is 2 h 0 min old. --run.name first resumes it." in result.stdout
    last = 10 * kept
    train(folder, FRAMEWORKS[0], "first", last, "--run.allow_changes=true")
    result = fastproj("report", "runs/first", cwd=folder)
    assert len(re.findall(r"the run was resumed after step \d+", result.stdout)) == 1
    assert "not finished" not in result.stdout
    assert (
        check_page(folder / "runs/first/report.html").count("the run was resumed after step") == 1
    )


def wait_for_rows(file: Path, count: int) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not file.exists() or len(file.read_text().splitlines()) < count:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_runs_are_compared(project: Project, fastproj: Fastproj, tmp_path: Path) -> None:
    folder = slow_project(
        project(FRAMEWORKS[0], ENGINE_MODEL),
        tmp_path,
        0.0,
        0.0,
    )
    for name, lr in (("low", "0.001"), ("high", "0.004")):
        train(folder, FRAMEWORKS[0], name, 20, f"--optim.lr={lr}")
    result = fastproj("report", "runs/low", "high", cwd=folder)
    differing = [
        line.split() for line in result.stdout.splitlines() if re.match(r"[a-z]+\.\w+ ", line)
    ]
    assert differing == [["optim.lr", "0.001", "0.004"]]
    text = check_page(folder / "runs/report.html")
    assert re.search(r"<th>optim.lr</th><td>0.001</td><td>0.004</td>", text)
    assert not (folder / "runs/low/report.html").exists()
    assert "page  runs/report.html" in result.stdout
