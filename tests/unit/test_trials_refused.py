"""`fastproj tune` and `bench` refuse what cannot be meant in one line.

The stand-in for the project's Python is a shell script.
"""

import json
from pathlib import Path

import pytest
from fastproj.runs import trials
from program import Fastproj

MACHINE = '["cpu", 2, "a machine"]'
ROW = '{"split": "train", "step": %d, "samples_per_second": 10.0, "seconds": %d}'
ROWS = "".join(f"{ROW % (step, step)}\n" for step in range(9))
CONFIG = json.dumps({"config": {"train": {"batch_size": 4, "gradient_accumulation_steps": 1}}})
SCRIPT = """#!/bin/sh
if [ "$1" = -c ]; then cat "{folder}/machine"; exit; fi
for word; do case $word in --run.dir=*) run=${{word#*=}}/trial;; esac; done
mkdir "$run"
cp "{folder}/config.json" "$run"
cp "{folder}/metrics.jsonl" "$run"
exec sleep 600
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A project whose training is a script that copies files of the test."""
    folder = tmp_path / "proj"
    for name in ("configs/default.yaml", "src/proj/train.py", "src/proj/model.py"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    (folder / "configs/default.yaml").write_text("train: {}\n")
    (folder / ".copier-answers.yml").write_text("framework: pytorch\n")
    (folder / "machine").write_text(MACHINE)
    (folder / "metrics.jsonl").write_text(ROWS)
    (folder / "config.json").write_text(CONFIG)
    python = folder / ".venv/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text(SCRIPT.format(folder=folder))
    python.chmod(0o755)
    return folder


def cases(texts: dict[str, list[str]]) -> list[tuple[str, str]]:
    found = []
    for file, contents in texts.items():
        found += [(file, content) for content in contents]
    return found


BAD = {
    "machine": ["", "torch", "[1]", "{}"],
    "metrics.jsonl": [
        "no JSON\n",
        "[1]\n",
        '{"split": "train"}\n',
        ROWS + '{"split": "train", "step": 9, "seconds": "soon"}\n',
        ROWS.replace("10.0", "NaN"),
        ROWS.replace("10.0", "-1"),
        100_000 * "[" + "\n",
    ],
    "config.json": ["", "[]", "{}", '{"config": 5}', '{"config":' * 100_000],
    ".copier-answers.yml": ["components: 5\n", "components: {a: 1}\n", "- 1\n", "a: [\n"],
}


@pytest.mark.parametrize(("file", "content"), cases(BAD))
def test_bad_input_is_one_line(
    file: str,
    content: str,
    fastproj: Fastproj,
    folder: Path,
) -> None:
    (folder / file).write_text(content)
    for command in (["tune", "--only", "batch"], ["bench", "batch"]):
        fastproj(*command, "--seconds", "0", cwd=folder, status=1)
    assert not (folder / "configs/tuned.yaml").exists()


ODD = {
    "config.json": [
        '{"config": {}}',
        '{"config": {"train": 5}}',
        CONFIG.replace("4", '"x"'),
        CONFIG.replace("4", "null"),
        CONFIG.replace("4", "[1]"),
        CONFIG.replace("1}", "0}"),
    ],
    ".copier-answers.yml": ["framework: [1]\n", "framework: 5\n", "components: [5, [1]]\n"],
    "src/proj/model.py": ["\x00"],
}


@pytest.mark.parametrize(("file", "content"), cases(ODD))
def test_odd_input_is_tried(
    file: str,
    content: str,
    fastproj: Fastproj,
    folder: Path,
) -> None:
    (folder / file).write_text(content)
    stages = ["--only", "precision,channels_last,batch,workers"]
    done = fastproj("tune", *stages, "--rounds", "1", "--seconds", "0", cwd=folder)
    assert "No option was proven faster" in done.stdout


@pytest.mark.parametrize("shebang", ["#!/no/interpreter", "", "\x7fELF"])
def test_interpreter_that_does_not_run_is_one_line(
    shebang: str, fastproj: Fastproj, folder: Path
) -> None:
    (folder / ".venv/bin/python").write_text(f"{shebang}\nexit 3\n")
    fastproj("tune", cwd=folder, status=1)


def test_what_hangs_is_ended(
    fastproj: Fastproj, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trials, "LONGEST_S", 0.2)
    (folder / "metrics.jsonl").write_text("")
    done = fastproj("bench", cwd=folder, status=1)
    assert "the training command fails: not 3 rows of metrics within the time" in done.stderr


def test_what_auto_stands_for_is_not_tried(fastproj: Fastproj, folder: Path) -> None:
    """The first lines of a run say it; the memory format is NHWC on CUDA."""
    speed = {"precision": "auto", "channels_last": "auto"}
    config = {"speed": speed, "loader": {"num_workers": "auto"}}
    (folder / "src/proj/model.py").write_text("nn.Conv2d")
    (folder / "config.json").write_text(json.dumps({"config": config}))
    lines = "bf16: the CPU has avx512_bf16\\n1 workers: one per core of the rank, at most 32\\n"
    script = SCRIPT.format(folder=folder).replace("mkdir", f'printf "{lines}"\nmkdir')
    (folder / ".venv/bin/python").write_text(script)
    stages = ["--only", "precision,channels_last,workers"]
    done = fastproj(
        "tune",
        *stages,
        "--rounds",
        "1",
        "--seconds",
        "0",
        cwd=folder,
    )
    assert [line.split(":")[0].split()[1:] for line in done.stdout.splitlines()[:-1]] == [
        ["speed.precision", "fp32"],
        ["speed.channels_last", "true"],
        ["loader.num_workers", "0"],
        ["loader.num_workers", "2"],
    ]


def test_all_sides_of_a_pair_count_the_same_time(fastproj: Fastproj, folder: Path) -> None:
    """CPU time, but with workers, which are other processes."""
    script = SCRIPT.format(folder=folder).replace("mkdir", f'echo "$1" >> "{folder}/clocks"\nmkdir')
    (folder / ".venv/bin/python").write_text(script)
    clocks = {}
    for stage in ("precision", "workers"):
        (folder / "clocks").unlink(missing_ok=True)
        fastproj("tune", "--only", stage, "--rounds", "1", "--seconds", "0", cwd=folder)
        first, *others = (folder / "clocks").read_text().splitlines()
        assert first.endswith("cpu_clock.py")
        clocks[stage] = {Path(word).name for word in others}
    assert clocks == {"precision": {"cpu_clock.py"}, "workers": {"-m"}}
