"""`fastproj report` on files that a test writes: damage, odd names, and what the rows prove."""

import json
import os
import random
import shutil
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from fastproj.runs import summary
from fastproj.runs.diagnosis import diagnose
from fastproj.runs.run import Run, read_runs
from fastproj.runs.times import events, phases
from program import Fastproj
from trained import train_row, val_row, write_run

ROWS = [
    train_row(10, 1.0, 0.9),
    train_row(20, 2.0, 0.5),
    val_row(20, 2.5, 0.6),
]


def read(
    folder: Path, rows: list[dict[str, Any]], config: dict[str, Any] | None = None, **record: Any
) -> Run:
    return read_runs([write_run(folder, rows, config, **record)])[0]


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        (
            "metrics.jsonl",
            '{"split": "train", "step"\n' + '{"split": "val", "step": 1}\n',
            "line 1: not a row of metrics",
        ),
        ("metrics.jsonl", '{"loss": 1.0}\n', "line 1: not a row of metrics"),
        (
            "metrics.jsonl",
            '{"split": "train", "step": 1, "loss": "low"}\n',
            "line 1: not a row of metrics",
        ),
        ("metrics.jsonl", "epoch,loss\n", "line 1: not a row of metrics"),
        ("metrics.jsonl", "\x00\x00\n", "line 1: not a row of metrics"),
        ("metrics.jsonl", '{"split": "tr', "has no row of metrics yet"),
        ("metrics.jsonl", "", "has no row of metrics yet"),
        ("config.json", '{"config": {"optim"', "does not describe a run"),
        ("config.json", '{"name": "another program"}', "does not describe a run"),
        ("config.json", "[]", "does not describe a run"),
    ],
)
def test_damaged_and_foreign_files_are_refused(
    file: str, content: str, message: str, fastproj: Fastproj, tmp_path: Path
) -> None:
    folder = write_run(tmp_path / "first", ROWS)
    (folder / file).write_text(content)
    result = fastproj("report", str(folder), status=1)
    assert result.stdout == ""
    assert message in result.stderr
    assert not (folder / "report.html").exists()


def test_missing_run_is_refused(fastproj: Fastproj, tmp_path: Path) -> None:
    (tmp_path / "runs/empty").mkdir(parents=True)
    for arguments, message in (
        ([], "no run in"),
        (["gone"], "there is no run gone"),
        (["runs/empty"], "is not the folder of a run"),
    ):
        result = fastproj("report", *arguments, cwd=tmp_path, status=1)
        assert result.stdout == ""
        assert message in result.stderr


def test_newest_run_is_read_from_a_folder_inside_the_project(
    fastproj: Fastproj, tmp_path: Path
) -> None:
    for name, age in (("newest", 0), ("old", 100)):
        metrics = write_run(tmp_path / "runs" / name, ROWS) / "metrics.jsonl"
        os.utime(metrics, (metrics.stat().st_atime, metrics.stat().st_mtime - age))
    (tmp_path / "src").mkdir()
    (tmp_path / ".copier-answers.yml").touch()
    fastproj("report", cwd=tmp_path / "src")
    assert (tmp_path / "runs/newest/report.html").exists()
    assert not (tmp_path / "runs/old/report.html").exists()


def test_odd_values_end_in_a_page_or_in_one_line(fastproj: Fastproj, tmp_path: Path) -> None:
    """No row and no config, however damaged, ends in a traceback or controls the terminal."""
    odd: list[Any] = [
        float("nan"),
        -float("inf"),
        10**400,
        10**18,
        -1,
        0.5,
        1e-320,
        1e308,
    ]
    odd += [
        None,
        True,
        "x",
        "1e5",
        "\x1b[2K\r",
        "\ud800",
        "a\nb",
        [],
        [1],
        {},
        {"a": {"b": 1}},
    ]
    config = {"loader": {"num_workers": 2}, "train": {"batch_size": 64, "monitor": "loss"}}
    record: dict[str, Any] = {
        "config": config,
        "versions": {"torch": "2.13"},
        "steps": 100,
    }
    record |= {
        "commit": "abc",
        "command": ["a"],
        "trained_with": {"training samples": 10},
    }
    other = write_run(tmp_path / "other", ROWS)
    statuses = set()
    for number in range(120):
        draw = random.Random(number)  # noqa: S311
        rows = [*chain.from_iterable(map(_steps, range(1, 9)))]
        changed: dict[str, Any] = json.loads(json.dumps(record))
        for _ in range(draw.randint(0, 2)):
            row = draw.choice(rows)
            row[
                draw.choice(
                    [
                        *row,
                        "new\x1b[31m",
                        "skipped",
                    ]
                )
            ] = draw.choice(odd[: draw.choice([8, 19])])
        for _ in range(draw.randint(0, 2)):
            parts = [
                part for part in (changed, *changed.values()) if isinstance(part, dict) and part
            ]
            part = draw.choice(parts)
            part[draw.choice([*part])] = draw.choice(odd)
        if draw.random() < 0.3:
            draw.shuffle(rows)
        folder = tmp_path / str(number)
        write_run(folder, rows)
        (folder / "config.json").write_text(json.dumps(changed))
        if draw.random() < 0.1:
            damaged = bytearray((folder / "metrics.jsonl").read_bytes())
            damaged[draw.randrange(len(damaged))] = draw.randrange(256)
            (folder / "metrics.jsonl").write_bytes(damaged)
        result = fastproj(
            "report", str(folder), *([str(other)] if number % 3 == 0 else []), status=None
        )
        statuses.add(result.returncode)
        assert result.stderr.count("\n") == result.returncode <= 1, result.stderr
        assert result.stdout.replace("\n", "").isprintable(), number
    assert statuses == {0, 1}


def _steps(place: int) -> list[dict[str, Any]]:
    return [train_row(10 * place, float(place)), val_row(10 * place, place + 0.1, 1 / place)]


@pytest.mark.parametrize("nested", ["[", '{"config":'])
def test_deeply_nested_files_are_refused(nested: str, fastproj: Fastproj, tmp_path: Path) -> None:
    for file in ("metrics.jsonl", "config.json"):
        folder = write_run(tmp_path / file, ROWS)
        (folder / file).write_text(100_000 * nested + "\n1\n")
        fastproj("report", str(folder), status=1)


def test_links_are_replaced_and_not_followed(fastproj: Fastproj, tmp_path: Path) -> None:
    folder = write_run(tmp_path / "first", ROWS)
    (folder / "report.html").symlink_to(tmp_path / "elsewhere")
    fastproj("report", str(folder))
    assert not (tmp_path / "elsewhere").exists()
    assert not (folder / "report.html").is_symlink()


def test_cut_last_line_is_left_out(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "first", ROWS)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"split": "train", "step": 30, "lo')
    (run,) = read_runs([folder])
    assert [row["step"] for row in run.rows] == [10, 20, 20]
    (folder / "config.json").unlink()
    assert read_runs([folder])[0].options == {}, "a copied run may come without it"


def test_names_and_values_are_escaped(fastproj: Fastproj, tmp_path: Path) -> None:
    hostile = "<script>alert(1)<-script>"
    rows = [row | {hostile: 0.5, "$\\frac{": 1.0} for row in ROWS]
    config = {"data": {hostile: hostile}}
    record = {
        "commit": hostile,
        "command": ["train.py", hostile],
        "versions": {hostile: hostile},
    }
    folder = write_run(tmp_path / f"{hostile}\x1b[31m", rows, config, **record)
    other = write_run(
        tmp_path / "other",
        rows,
        {"data": {hostile: "<b>"}},
    )
    for given in ([folder], [folder, other]):
        result = fastproj(
            "report",
            *map(str, given),
            "--output",
            str(tmp_path / "page.html"),
        )
        assert "\x1b" not in result.stdout
        text = (tmp_path / "page.html").read_text()
        assert "<script" not in text
        assert text.count("&lt;script&gt;") > 5


def test_other_files_are_not_replaced(fastproj: Fastproj, tmp_path: Path) -> None:
    folder = write_run(tmp_path / "first", ROWS)
    (tmp_path / "mine.html").write_text("<p>mine</p>")
    for output, message in (
        ("mine.html", "is not a report"),
        ("first", "is not a report"),
        ("gone/page.html", "cannot write"),
    ):
        result = fastproj(
            "report",
            str(folder),
            "-o",
            str(tmp_path / output),
            status=1,
        )
        assert message in result.stderr
    assert (tmp_path / "mine.html").read_text() == "<p>mine</p>"
    for _ in range(2):  # a report is replaced
        fastproj("report", str(folder))
    assert sorted(file.name for file in folder.iterdir()) == [
        "config.json",
        "metrics.jsonl",
        "report.html",
    ]
    assert oct((folder / "report.html").stat().st_mode) == oct(
        (folder / "config.json").stat().st_mode
    )


def test_report_replaces_a_report_elsewhere(fastproj: Fastproj, tmp_path: Path) -> None:
    """Two runs of the same name are told apart by their folders."""
    for place in ("here", "there"):
        write_run(tmp_path / place / "first", ROWS)
    result = fastproj("report", "here/first", "there/first", "-o", "page.html", cwd=tmp_path)
    assert "here/first" in result.stdout
    assert "there/first" in (tmp_path / "page.html").read_text()


def test_events_are_told(tmp_path: Path) -> None:
    rows = [
        train_row(10 * place, float(place), skipped=2.0 if place > 4 else 0.0)
        for place in range(1, 9)
    ]
    rows += [train_row(90, 40.0, skipped=2.0), train_row(100, 1.0, skipped=3.0)]
    assert events(read(tmp_path / "a", rows)) == [
        (50, "2 steps were skipped until step 50"),
        (90, "the run was resumed after step 90"),
        (100, "1 steps were skipped until step 100"),
    ]


def test_resumed_run_whose_seconds_go_on(tmp_path: Path) -> None:
    rows = [train_row(10 * place, float(place)) for place in range(1, 9)]
    run = read(
        tmp_path / "a",
        rows,
        starts=[0, 25, 50],
    )
    resumed = "the run was resumed after step"
    assert events(run) == [(20, f"{resumed} 20"), (50, f"{resumed} 50")]


def test_drop_of_speed_is_an_event(tmp_path: Path) -> None:
    speeds = [1000.0, 400.0, *8 * [1000.0], *8 * [600.0], *8 * [500.0]]
    rows = [
        train_row(10 * place, float(place), samples_per_second=speed)
        for place, speed in enumerate(speeds, 1)
    ]
    fall = "the speed fell from 1,000 to 600 samples per second after step 100"
    assert events(read(tmp_path / "a", rows)) == [(100, fall)]


def test_values_that_are_not_finite_are_an_event(tmp_path: Path) -> None:
    rows = [*ROWS, train_row(30, 4.0, grad_norm=float("inf"))]
    assert (30, "grad_norm is not finite in 1 row, first at step 30") in events(
        read(tmp_path / "a", rows)
    )


def test_best_value_of_each_metric(tmp_path: Path) -> None:
    """The direction is that of train.monitor_mode, or known by the metric's name."""
    rows = [
        val_row(step, float(step), loss)
        | {
            "accuracy": 1 - loss,
            "mae": loss,
            "odd": loss,
        }
        for step, loss in ((1, 0.5), (2, 0.1), (3, 0.2))
    ]
    recipe = {"train": {"monitor": "loss", "monitor_mode": None}}
    facts = summary.facts([read(tmp_path / "a", rows, recipe)])
    assert facts["lowest validation loss"] == ["0.1 at step 2"]
    assert facts["highest validation accuracy"] == ["0.9 at step 2"]
    assert facts["lowest validation mae"] == ["0.1 at step 2"]
    assert facts["validation odd"] == ["0.2"]
    assert "highest validation odd" not in facts
    config: dict[str, Any] = {"train": {"monitor": "odd", "monitor_mode": "max"}}
    facts = summary.facts([read(tmp_path / "b", rows, config)])
    assert facts["highest validation odd"] == ["0.5 at step 1"]
    config = {"train": {"monitor": "loss", "monitor_mode": None}}
    facts = summary.facts([read(tmp_path / "c", rows, config)])
    assert facts["lowest validation loss"] == ["0.1 at step 2"]


def test_time_of_phases(tmp_path: Path) -> None:
    """Lightning validates between two rows of training: the steps before are training."""
    rows = [
        train_row(10, 5.0),
        train_row(20, 6.0, data_wait=0.5),
        train_row(30, 7.0),
        val_row(35, 9.5, 1.0),
    ]
    assert phases(read(tmp_path / "a", rows)) == pytest.approx(
        {
            "training": 1.99,
            "waiting for data": 0.51,
            "validation": 2.0,
            "first steps of each start": 5.0,
        }
    )


def test_bottlenecks_are_told_apart(tmp_path: Path) -> None:
    def found(
        name: str,
        wait: float,
        validation: float,
    ) -> list[str]:
        rows = []
        seconds = 0.0
        for step in range(10, 60, 10):
            rows += [
                train_row(step, seconds + 1, data_wait=wait),
                val_row(step, seconds + 1 + validation, 1.0),
            ]
            seconds += 1 + validation
        return diagnose(
            read(
                tmp_path / name,
                rows,
                config={"loader": {"num_workers": 3}, "train": {"eval_every": 10}},
            )
        )

    neither = (
        "The training steps take most of the time (data wait 9%, validation 9%): "
        "fastproj tune looks for faster options."
    )
    loader = "The loader is the bottleneck: data wait 38% of the training loop; "
    loader += "try loader.num_workers 6 (now 3)."
    validation = (
        "Validation, with its checkpoints, takes 50% of the time: raise train.eval_every (now 10)."
    )
    assert found("neither", 0.09, 0.1) == [neither]
    assert found("loader", 0.38, 0.1) == [loader]
    assert found("validation", 0.09, 1.0) == [validation]
    assert found("both", 0.38, 1.0) == [loader, validation]


def test_run_copied_from_another_machine(fastproj: Fastproj, tmp_path: Path) -> None:
    folder = write_run(
        tmp_path / "first", ROWS, steps=20, command=["/home/another/train.py"], commit="abc-dirty"
    )
    moved = Path(shutil.move(folder, tmp_path / "moved"))
    fastproj("report", str(moved / "metrics.jsonl"))
    text = (moved / "report.html").read_text()
    assert "/home/another/train.py" in text
    assert "abc-dirty" in text
    assert "not finished" not in text
