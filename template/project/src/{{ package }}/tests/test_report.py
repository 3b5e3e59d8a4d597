"""A report has the values of metrics.jsonl, whatever is in it, and says what happened to a run."""

import json
import math
import os
import re
import warnings
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from .. import trackers
from ..errors import UserError
from ..tools import report
from ..tools.report_chart import thin, ticks
from ..tools.report_page import build_page
from ..tools.run_record import RunRecord, read_run
from ..trackers import follow

HOSTILE = "</script><script>alert(1)</script>"
STARTED = {"run": {"name": "a"}, "optim": {"lr": 0.1}, "train": {"monitor": "score", "monitor_mode": "max"}}


def write(folder: Path, rows: list[dict[str, Any]], config: dict[str, Any] | None = None, end: str = "") -> Path:
    folder.mkdir(parents=True)
    text = "".join(f"{json.dumps(row)}\n" for row in rows)
    (folder / "metrics.jsonl").write_text(text + end)
    if config:
        (folder / "config.json").write_text(json.dumps(config))
    return folder


def train_rows(count: int, **more: Any) -> list[dict[str, Any]]:
    return [{"split": "train", "step": at, "loss": 1 / at, "seconds": at, **more} for at in range(1, count + 1)]


def embedded(page: str) -> Any:
    """Return the JSON in a page; the only script there is."""
    scripts: list[str] = re.findall(r"<script[^>]*>(.*?)</script>", page, re.DOTALL)
    assert len(scripts) == page.count("<script") == 1
    return json.loads(scripts[0])


def test_page_of_two_runs_has_their_values_events_and_differences(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first is resumed, has met what can go wrong, and is being written; the names of the second are hostile."""
    rows = train_rows(6, data_wait=0.25, forward=0.5, skipped_steps=2)
    rows[3:] = [{**row, "seconds": row["step"] - 3.5} for row in rows[3:]]
    rows += [{"split": "val", "step": 6, "loss": 0.5, "score": math.nan, "seconds": 3}]
    first = write(tmp_path / "runs/a", rows, STARTED, end='not a row\n{"split": "train", "st')
    (first / "out_of_memory.json").write_text('{"micro_batch": 32}')
    (first / "nonfinite.jsonl").write_text('{"step": 5, "loss": NaN, "grad_norm": NaN, "action": "skip"}\n')
    (first / "unfinished-1").mkdir()
    (first / "checkpoints/step-00000006").mkdir(parents=True)
    skipped = {"problems": 1, "first": ["x.png is damaged"], "unreadable": {"train": 3, "val": 1}}
    record = {"versions": {"torch": "2.13.0"}, "git": {"commit": "abc"}, "command": ["python", "-m", "a b"]}
    manifest = {"provenance": record, "skipped": skipped}
    (first / "checkpoints/step-00000006/manifest.json").write_text(json.dumps(manifest))
    odd = [{"split": "train", "step": 1, HOSTILE: 0.5, '" onload="': math.inf}]
    second = write(
        tmp_path / "runs" / HOSTILE.replace("/", "|"), odd, {"run": {"name": HOSTILE}, "optim": {"lr": HOSTILE}}
    )
    with pytest.warns(UserWarning, match="1 line of .*metrics.jsonl is damaged, and left out"):
        report.main([str(first), str(second), "--json"])
    done = json.loads(capsys.readouterr().out)
    page = (tmp_path / "runs/report.html").read_text()
    assert done["page"] == str(tmp_path / "runs/report.html")
    assert Path(done["plot"]).stat().st_size > 10_000
    kept = embedded(page)
    assert kept[0]["rows"] == [{**row, "score": "nan"} if "score" in row else row for row in rows]
    assert kept[1]["rows"] == [{**odd[0], '" onload="': "inf"}]
    text = unescape(re.sub(r"<[^>]+>", " ", page.replace("</tr>", "\n")))
    happened = [re.sub(r"\s+", " ", line).strip() for line in text.splitlines()]
    for line in (
        f"a - 1 line of {first}/metrics.jsonl is damaged, and left out",
        "a - memory ran out: the micro-batch was reduced to 32 samples",
        "a - 1 problem in the data, such as: x.png is damaged",
        "a - 3 unreadable samples in the train data",
        "a - 1 unreadable sample in the val data",
        "a - an earlier start ended before its first checkpoint; its files are in unfinished-1",
        "a 3 resumed, after this step",
        "a 5 loss nan, gradient norm nan: skip",
        "a 6 2 steps were skipped up to here, as their gradient was not finite",
        "a 6 val score is not finite",
        "a 25.0% - 50.0% - - -",
        f"optim.lr 0.1 {HOSTILE}",
        "versions.torch 2.13.0 -",
        "command python -m 'a b' -",
    ):
        assert line in happened
    assert done["runs"][0]["seconds"] == 3 + 3
    assert done["runs"][0]["best"] is None
    assert not re.search(r"(src|href)=\"(?!data:,)|url\(|@import|https?:", page)


def test_page_of_a_long_run_is_small(tmp_path: Path) -> None:
    rows = [{**row, "a": row["step"] % 7 / 3, "b": 1e9 * (row["step"] == 12345)} for row in train_rows(30_000)]
    run = RunRecord(tmp_path, "a", rows, "", {}, {})
    page = build_page([run])
    assert len(page) < 2_000_000
    kept = embedded(page)[0]["rows"]
    assert (kept[0], kept[-1]) == (rows[0], rows[-1])
    assert f"{len(kept):,} of 30,000 rows of metrics.jsonl are in this file, as JSON" in page
    assert len(thin(run.series("train", "b"), 100)) <= 100
    assert (12345, 1e9) in thin(run.series("train", "b"), 100)


def test_resume_is_found_when_its_clock_has_passed_the_row_before(tmp_path: Path) -> None:
    """Rows of ten seconds: one before a resume, two after it, of which the last has a validation before it."""
    rows = [{"split": "train", "step": 10 * at, "samples_per_second": 32.0} for at in (1, 2, 3)]
    rows.insert(2, {"split": "val", "step": 25})
    rows = [{**row, "seconds": seconds} for row, seconds in zip(rows, (11.0, 11.5, 20.0, 22.0), strict=True)]
    run = RunRecord(tmp_path, "a", rows, "", {"train.micro_batch": 16, "train.accumulate": 2}, {})
    assert (run.resumes(), run.seconds()) == ([1], 33.0)


def test_resumes_that_were_recorded_are_found(tmp_path: Path) -> None:
    """A short run that begins slowly again: the clock alone does not tell."""
    rows = [{"split": "train", "step": at, "seconds": at / 10} for at in (1, 2, 3, 4)]
    folder = write(tmp_path / "a", rows, STARTED)
    (folder / "resumes.json").write_text('{"after_rows": [0, 2, "x"]}')
    run = read_run(folder)
    assert (run.resumes(), run.seconds()) == ([2], 0.2 + 0.4)


def test_ticks_are_round() -> None:
    assert ticks(0.07, 0.93, 5) == pytest.approx([0.2, 0.4, 0.6, 0.8])
    assert ticks(10, 1500, 5) == [500, 1000, 1500]
    for low, high in ((-1e308, 1e308), (0, 5e-324), (1e300, 1.1e300), (-1e-9, 1e-9)):
        assert len(ticks(low, high, 5)) <= 6


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "cannot read .*metrics.jsonl .No such file or directory.: give the folder of a run"),
        ("", "metrics.jsonl has no row: train for at least one log interval first"),
        ("[" * 100_000 + '\n{"split": "train", "step": "x"}\n', "metrics.jsonl has no row"),
        ('{"split": "train", "step": 1, "loss": 1' + "0" * 400 + "}\n", "metrics.jsonl has no row"),
    ],
)
def test_run_without_rows_is_refused(tmp_path: Path, text: str | None, message: str) -> None:
    if text is not None:
        (tmp_path / "metrics.jsonl").write_text(text)
    with pytest.raises(UserError, match=message):
        read_run(tmp_path)


def test_odd_values_are_drawn_and_odd_places_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    values = [math.nan, math.inf, 1e308, -1e308, 5e-324, 0.5]
    largest = write(tmp_path / "_largest", [{"split": "train", "step": 1, "loss": 1.7e308, "seconds": math.inf}])
    other = write(tmp_path / "other", [{"split": "test", "step": 1, "loss": 1.0}])
    odd = write(tmp_path / "odd", [{"split": "train", "step": at, "loss": it} for at, it in enumerate(values)])
    broken = write(tmp_path / "broken", [{"split": "val", "step": 1, "score": math.nan}])
    left_out = [odd, broken, tmp_path / "missing", tmp_path / ("a" * 300)]
    for runs in ([odd], [broken], [largest, other], left_out):
        with pytest.warns(UserWarning, match="it is left out") if runs is left_out else warnings.catch_warnings():
            warnings.simplefilter("always" if runs is left_out else "error")
            report.main([*map(str, runs), f"--output={tmp_path}/page.html"])
        assert (tmp_path / "page.html").exists()
        assert (tmp_path / "page.png").exists()
    for option, said in (
        ("--output=page.txt", "error: --output page.txt: its name must end with .html"),
        (
            f"--output={tmp_path}/no/page.html",
            "error: cannot write .*page.html .No such file or directory.: give another",
        ),
    ):
        with pytest.raises(SystemExit, match=said):
            report.main([str(odd), option])


def test_names_that_are_not_utf_8_are_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        runs = [write(tmp_path / place / os.fsdecode(b"x\xff"), train_rows(2)) for place in "ab"]
    except OSError:
        pytest.skip("the file system has UTF-8 only")
    manifest = {"provenance": {"command": ["train", "--config=\udcff.yaml"]}}
    (runs[0] / "checkpoints/step-00000002").mkdir(parents=True)
    (runs[0] / "checkpoints/step-00000002/manifest.json").write_text(json.dumps(manifest))
    for folders in (runs[:1], runs):
        report.main([*map(str, folders)])
        page = Path(capsys.readouterr().out.splitlines()[0].removeprefix("page in ").replace("\\udcff", "\udcff"))
        assert "x?" in page.read_text(encoding="utf-8")
        assert "--config=?.yaml" in page.read_text(encoding="utf-8")


@pytest.mark.parametrize("push", [False, True])
def test_an_interrupt_ends_it_without_a_traceback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, push: bool) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    for module, name in ((report, "build_page"), (follow, "push")):
        monkeypatch.setattr(module, name, interrupt)
    monkeypatch.setattr(trackers, "check", lambda *_: None)
    with pytest.raises(SystemExit) as ended:
        report.main([str(write(tmp_path / "a", train_rows(2))), *["--push=wandb"] * push])
    assert ended.value.code == 130


def test_what_takes_long_is_announced_and_a_failed_push_has_a_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise ConnectionError("no network")

    monkeypatch.setattr(report, "MANY", 2)
    monkeypatch.setattr(report, "LARGE", 1)
    folder = str(write(tmp_path / "a", train_rows(1, a=1.0, b=2.0)))
    report.main([folder])
    assert capsys.readouterr().err == "reading and drawing 0 MB of metrics\ndrawing 3 metrics\n"
    monkeypatch.setattr(trackers, "check", lambda *_: None)
    monkeypatch.setattr(follow, "push", lambda *_: 1)
    report.main([folder, "--push=wandb"])
    assert capsys.readouterr() == (f"wandb has the 1 row of {folder}\n", "reading 0 MB of metrics\n")
    monkeypatch.setattr(follow, "push", fail)
    with pytest.raises(SystemExit, match=r"no network\): repair that, and push again, which sends what is missing"):
        report.main([folder, "--push=wandb"])


def test_counts_of_one_are_singular(tmp_path: Path) -> None:
    rows = [*train_rows(2, skipped_steps=1), {"split": "val", "step": 1, "loss": math.nan}]
    events = read_run(write(tmp_path / "a", [*rows, {**rows[-1], "step": 2}])).events
    assert [what for _, what in events] == [
        "val loss is not finite, and at 1 later step",
        "1 step was skipped up to here, as its gradient was not finite",
    ]
