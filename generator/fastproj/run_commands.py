"""The commands about runs: `report`, `tune` and `bench`."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .errors import UsageError

if TYPE_CHECKING:  # slow to import
    from .runs.project import TrainedProject
    from .runs.stages import Setting
    from .runs.trials import Trainer

Runs = Annotated[
    list[Path] | None,
    typer.Argument(
        metavar="RUN", help="Folders of runs, or their names in runs/; the newest run by default."
    ),
]
Page = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        help="File to write; report.html in the folder of the run by default.",
    ),
]
Given = Annotated[
    str | None,
    typer.Option(
        "--options",
        help="Options of the training command for all trials, such as '--data.path FOLDER'.",
    ),
]
Processes = Annotated[int, typer.Option(min=1, help="Processes that train together, one per GPU.")]
Python = Annotated[
    Path | None, typer.Option(help="Python that trains; the project's .venv by default.")
]
Seconds = Annotated[
    float, typer.Option(min=0.0, help="Seconds for which each trial is measured, after its start.")
]
Rounds = Annotated[int, typer.Option(min=1, help="Interleaved rounds of each comparison.")]


def report(runs: Runs = None, output: Page = None) -> None:
    """Summarize a run, or compare several. Writes a page with curves, times and events."""
    from .runs.report import write_page
    from .runs.run import read_runs
    from .runs.summary import text

    contents = read_runs(runs or [])
    print(text(contents))
    page = write_page(contents, output)
    print(f"\npage  {page}")


def tune(
    only: Annotated[
        str | None, typer.Option(help="Stages to try, separated by commas; all by default.")
    ] = None,
    minutes: Annotated[
        float, typer.Option(min=0.0, help="Time budget, after which no new stage begins.")
    ] = 30.0,
    rounds: Rounds = 3,
    seconds: Seconds = 3.0,
    options: Given = None,
    processes: Processes = 1,
    python: Python = None,
) -> None:
    """Find faster options for this machine by short trainings.

    Writes configs/tuned.yaml with the evidence.
    """
    import time

    from tqdm import tqdm

    from .runs import tuned_file
    from .runs.comparison import Measure
    from .runs.options import as_text
    from .runs.project import find_project
    from .runs.stages import STAGES
    from .runs.tune import TuneResult
    from .runs.tune import tune as run_tune

    stages = only.replace(" ", "").split(",") if only else list(STAGES)
    if unknown := [stage for stage in stages if stage not in STAGES]:
        raise UsageError(f"there is no stage {unknown[0]}: choose from {', '.join(STAGES)}")
    project = find_project(python)
    file = tuned_file.destination(project.folder)
    result = TuneResult()
    interrupted = False
    deadline = time.monotonic() + 60 * minutes
    with begun(project, options, processes, seconds) as (trainer, setting):
        bar = tqdm(unit=" trials", disable=None)
        measure = Measure(trainer, rounds, deadline, bar.update)
        try:
            run_tune(setting, stages, measure, result, bar.write)
        except (KeyboardInterrupt, SystemExit):  # the latter by SIGTERM
            interrupted = True
        bar.close()
    if result.kept:
        file.write_text(tuned_file.content(setting, result), encoding="utf-8")
        if result.gain.trials:
            print(tuned_file.together(result))
        use = "make train ARGS='--config configs/tuned.yaml' uses it"
        print(f"configs/tuned.yaml has {as_text(result.kept)}; {use}")
    else:
        print("No option was proven faster than the recipe; no file was written.")
    if interrupted:
        raise typer.Exit(130)


def bench(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="NAME", help="Techniques; all by default.")
    ] = None,
    rounds: Rounds = 3,
    seconds: Seconds = 3.0,
    options: Given = None,
    processes: Processes = 1,
    python: Python = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Folder of bench.json; runs by default."),
    ] = None,
) -> None:
    """Measure how much faster each technique makes the training."""
    import json

    from tqdm import tqdm

    from .runs import bench as results
    from .runs.comparison import Comparison, Measure
    from .runs.files import replace
    from .runs.project import find_project
    from .runs.techniques import applicable

    project = find_project(python)
    folder = output or project.folder / "runs"
    comparisons: dict[str, Comparison] = {}
    with begun(project, options, processes, seconds) as (trainer, setting):
        techniques = applicable(setting)
        chosen = names or list(techniques)
        if unknown := [name for name in chosen if name not in techniques]:
            known = ", ".join(techniques)
            raise UsageError(f"{unknown[0]} cannot be measured here: choose from {known}")
        bar = tqdm(total=2 * rounds * len(chosen), unit=" trials", disable=None)
        measure = Measure(trainer, rounds, float("inf"), bar.update)
        for name in chosen:
            technique = techniques[name]
            enabled = {name: technique.enabled}
            comparisons |= measure.compare(technique.without, enabled, drop=False)
        bar.close()
    print(results.table(comparisons))
    record = results.as_record(setting, techniques, comparisons)
    folder.mkdir(parents=True, exist_ok=True)
    replace(folder / "bench.json", json.dumps(record, indent=1) + "\n")
    print(f"\n{folder / 'bench.json'} has the rounds of each technique")


@contextmanager
def begun(
    project: "TrainedProject",
    given: str | None,
    processes: int,
    seconds: float,
) -> "Iterator[tuple[Trainer, Setting]]":
    """Make the first trial of a project in a temporary folder."""
    import shlex
    import tempfile

    from .runs.stages import Setting
    from .runs.trials import Trainer
    from .scratch import scratch_folder

    machine = project.machine()
    try:
        words = shlex.split(given or "")
    except ValueError as error:
        raise UsageError(f"--options cannot be read ({error}): quote them as in a shell") from error
    with scratch_folder(Path(tempfile.gettempdir()), "trials") as folder:
        trainer = Trainer(project, words, processes, seconds, folder)
        yield trainer, Setting(project, machine, trainer.begin(), processes)
