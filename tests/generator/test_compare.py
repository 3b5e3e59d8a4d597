"""`fastproj compare`, with a stand-in for the training command."""

import json
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from program import Fastproj, documented_keys

TRAINER = """
import json, pathlib, random, sys, time
if sys.argv[1] == "-c":
    print(json.dumps(["cpu", 2, "a machine"]))
    sys.exit()
if "--print_config" in sys.argv:
    sys.exit("error: unrecognized arguments: --optim.lrr" if "lrr" in str(sys.argv) else 0)
given = dict(word.removeprefix("--").split("=", 1) for word in sys.argv if "=" in word)
name = given.get("run.name") or sys.argv[sys.argv.index("--run.name") + 1]
given.setdefault("run.seed", "0")
seed, rate = int(given["run.seed"]), float(given.get("optim.lr", 0.1))
if name != "trial":
    pathlib.Path("trained").open("a").write(f"{name}\\n")
if rate > 100:
    sys.exit("error: optim.lr is not what it must be")
while rate == 50 and seed == 1 and not pathlib.Path("go").exists():
    time.sleep(0.01)
code = sys.argv[sys.argv.index("--config") + 1].removesuffix("configs/default.yaml")
step_s = float(pathlib.Path(code, "src/proj/train.py").read_text() or 1.0)
run = pathlib.Path(given["run.dir"], name)
run.mkdir(parents=True, exist_ok=True)
train = {"batch_size": 1, "monitor": "accuracy", "monitor_mode": "max"}
(run / "config.json").write_text(json.dumps({"config": {"train": train}, "steps": 9}))
noise = random.Random(f"{seed} {rate}").gauss(0, 0.01)
accuracy = 0.9 + random.Random(seed).gauss(0, 0.05) - (0.3 if rate > 1 else 0) + noise
noise = random.Random(f"{seed} {step_s}").gauss(0, 0.005)
speed = {"samples_per_second": (1 + noise) / step_s}
row = {"split": "train", "loss": 1.0} | speed
rows = [row | {"step": step, "seconds": step_s * step} for step in range(1, 10)]
if rate == 60:
    accuracy = float("nan")
end = {"split": "val", "step": 9, "loss": 1.0, "accuracy": accuracy}
rows.append(end | {"odd": 1.0, "seconds": 10 * step_s})
(run / "metrics.jsonl").write_text("".join(json.dumps(row) + chr(10) for row in rows))
while name == "trial":
    time.sleep(600)
"""
"""Seeds differ by 0.05 in accuracy, and pairs by 0.014; a rate above 1 costs 0.3.

train.py has the seconds of a step. A rate of 50 waits with seed 1 for the file `go`; one of 60 ends
with an accuracy of NaN, and one above 100 crashes.
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A project with the files that `compare` reads, and its stand-in."""
    folder = tmp_path / "proj"
    for name in ("configs/default.yaml", "src/proj/train.py", ".venv/bin/python"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    (folder / ".copier-answers.yml").write_text("framework: pytorch\n")
    (folder / "configs/default.yaml").write_text("train: {}\n")
    (folder / ".gitignore").write_text("/runs\n/.venv\n/trained\n")
    (folder / ".venv/bin/python").write_text(f"#!{sys.executable} -IS\n{TRAINER}")
    (folder / ".venv/bin/python").chmod(0o755)
    return folder


def records(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "runs/experiments.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def test_candidates_are_worse_or_not_shown_to_differ(fastproj: Fastproj, folder: Path) -> None:
    """A rate that is far too high is worse within four pairs; others are no different."""
    given = [
        "--candidate",
        "optim.lr=5",
        "--candidate",
        "optim.lr=0.2",
        "--candidate",
        "optim.lr=200",
    ]
    done = fastproj("compare", *given, cwd=folder)
    high, other, crash = done.stdout.splitlines()
    assert re.fullmatch(
        r"optim.lr=5: worse: accuracy -0\.[23]\d* \(95%: -0.\d+ to -0.\d+\); "
        r"1\.000 times as fast \(95%: 1.000 to 1.000, [34] pairs\)",
        high,
    ), high
    assert re.match(r"optim.lr=0.2: no difference shown: accuracy .*, 8 pairs\); ", other), other
    assert re.search(r"; about \d+ pairs would show 0\.0\d+, half of the spread", other)
    assert crash == "optim.lr=200: crash: optim.lr is not what it must be"
    decisions = {record["candidate"]: record["decision"] for record in records(folder)}
    assert list(decisions.values()) == ["discard", "discard", "crash"]
    log = fastproj("compare", "--log", cwd=folder).stdout
    assert f"discard  optim.lr=5 against the recipe: {high.removeprefix('optim.lr=5: ')}" in log
    logged = json.loads(fastproj("compare", "--log", "--json", cwd=folder).stdout)
    assert logged == {"comparisons": records(folder)}


def test_wrong_option_is_named_before_anything_is_trained(fastproj: Fastproj, folder: Path) -> None:
    given = ["compare", "--candidate", "optim.lr=5", "--candidate", "optim.lrr=5"]
    done = fastproj(*given, cwd=folder, status=2)
    assert done.stderr == "fastproj: optim.lrr=5: unrecognized arguments: --optim.lrr\n"
    assert not (folder / "trained").exists()


def test_code_of_another_commit_is_the_base(fastproj: Fastproj, folder: Path) -> None:
    """A step that takes 5% longer is found, in the order of runs and in their speed."""

    def git(*words: str) -> None:
        settings = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
        subprocess.run(
            ["git", *settings, *words],
            cwd=folder,
            check=True,
            capture_output=True,
        )

    (folder / "src/proj/train.py").write_text("1.0\n")
    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "one")
    (folder / "src/proj/train.py").write_text("1.05\n")
    given = ["compare", "--base", "HEAD", "--metric", "samples_per_second"]
    (folder / "src/proj/train.py").write_text("1.0\n")
    same = fastproj(*given, "--seeds", "2", cwd=folder).stdout
    assert same.startswith("no difference shown: 1.000 times")
    assert len((folder / "trained").read_text().splitlines()) == 2, "each seed once, for both sides"
    (folder / "src/proj/train.py").write_text("1.05\n")
    done = fastproj(*given, "--json", cwd=folder)
    facts = json.loads(done.stdout)
    assert facts.keys() == documented_keys("compare")
    (record,) = facts["comparisons"]
    assert (record["base"], record["candidate"]) == ("HEAD", "the working tree")
    assert record["verdict"] == "worse"
    assert record["speed"] == pytest.approx(0.95, abs=0.01)
    assert record["commit"].endswith("-dirty")
    (folder / "src/proj/train.py").write_text("1.0\n")
    assert "no difference shown: 1.000 times" in fastproj(*given, cwd=folder).stdout
    done = fastproj("compare", "--base", "gone", cwd=folder, status=2)
    assert "--base gone has no code of this project" in done.stderr


def test_interrupted_comparison_goes_on(folder: Path, environment: dict[str, str]) -> None:
    """What ended is not trained again, and what was killed is."""
    command = [
        sys.executable,
        "-m",
        "fastproj",
        "compare",
        "--with",
        "optim.lr=50",
        "--seeds",
        "3",
    ]
    pipes: dict[str, Any] = {
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
        "text": True,
    }
    with subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        **pipes,
    ) as process:
        trained = folder / "trained"
        while not trained.exists() or len(trained.read_text().splitlines()) < 4:
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        printed, errors = process.communicate()
    assert process.returncode == 130
    assert errors.splitlines()[-1] == "fastproj: interrupted; run the same command to continue"
    assert printed == "not compared: fewer than two pairs were trained, which is no evidence\n"
    assert not (folder / "runs/experiments.jsonl").exists()
    (folder / "go").touch()
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment,
        check=False,
        **pipes,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("worse: accuracy -0.3")
    names = trained.read_text().splitlines()
    assert len(set(names)) == 6
    assert 7 <= len(names) <= 8, "the runs of seed 1 that were killed began again"
    assert all(names.count(name) == 1 for name in names if not name.endswith("seed1"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "nothing to compare: pass --with KEY=VALUE, --candidate or --base"),
        (["--with", "optim.lr"], "optim.lr is not of the form KEY=VALUE"),
        (["--candidate", "'"], "--candidate cannot be read (No closing quotation)"),
        (["--with", "a=1", "--metric", "f1"], "the runs have no metric f1: choose from accuracy, "),
        (["--with", "a=1", "--metric", "odd"], "it is not known whether a lower odd is better"),
        (["--with", "a=1", "--options=--optim.lr=200"], "the training command fails: optim.lr is"),
        (
            ["--with", "optim.lr=1", "--options=--optim.lr=60"],
            "the base fails with seed 0: accuracy is nan at the end",
        ),
    ],
)
def test_errors_are_one_line(
    arguments: list[str], message: str, fastproj: Fastproj, folder: Path
) -> None:
    done = fastproj("compare", *arguments, cwd=folder, status=None)
    assert done.returncode in (1, 2)
    assert done.stderr.splitlines()[-1].startswith(f"fastproj: {message}"), done.stderr
    assert "Traceback" not in done.stderr
    assert not (folder / "runs/experiments.jsonl").exists()


def test_log_is_not_written_or_read_through_damage(
    fastproj: Fastproj, folder: Path, tmp_path: Path
) -> None:
    (folder / "runs").mkdir()
    log = folder / "runs/experiments.jsonl"
    log.symlink_to(tmp_path / "elsewhere")
    fastproj(
        "compare",
        "--with",
        "optim.lr=5",
        "--seeds",
        "2",
        cwd=folder,
        status=1,
    )
    assert not (tmp_path / "elsewhere").exists()
    log.unlink()
    for line in ("{", "[1]", "\x00", 100_000 * "["):
        log.write_text(f"{line}\n")
        fastproj("compare", "--log", cwd=folder, status=1)
    log.write_text('{"text": "\\u001b[2K", "candidate": 5}\n')
    assert "\x1b" not in fastproj("compare", "--log", cwd=folder).stdout
    log.unlink()
    done = fastproj("compare", "--with", "optim.lr=5", "--hours", "0", cwd=folder)
    assert done.stdout.startswith("not compared: fewer than two pairs were trained")
    assert log.read_text() == "", "what was not compared is no decision"
    shutil.rmtree(folder / "runs")
    assert fastproj("compare", "--log", cwd=folder).stdout == "no comparison yet\n"
