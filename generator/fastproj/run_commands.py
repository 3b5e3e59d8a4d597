"""The commands about runs: `report`, `tune`, `bench` and `compare`."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .errors import UsageError
from .options import Json

if TYPE_CHECKING:  # slow to import
    from .runs.project import TrainedProject
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
Rounds = Annotated[
    int, typer.Option(min=1, help="Most pairs of trials of a comparison; one is no evidence.")
]


def report(runs: Runs = None, output: Page = None, json: Json = False) -> None:
    """Summarize a run, or compare several. Writes a page with curves, times and events."""
    from . import show
    from .runs import summary
    from .runs.page import write_page
    from .runs.run import read_runs

    contents = read_runs(runs or [])
    page = write_page(contents, output)
    facts = summary.report(contents) | {"page": str(page)}
    show.result(facts, lambda _: f"{summary.text(contents)}\n\npage  {page}", json)


def tune(
    only: Annotated[
        str | None, typer.Option(help="Stages to try, separated by commas; all by default.")
    ] = None,
    minutes: Annotated[
        float, typer.Option(min=0.0, help="Time budget, after which no new stage begins.")
    ] = 30.0,
    rounds: Rounds = 5,
    seconds: Seconds = 3.0,
    options: Given = None,
    processes: Processes = 1,
    python: Python = None,
    json: Json = False,
) -> None:
    """Find faster options for this machine by short trainings.

    Writes configs/tuned.yaml with the evidence.
    """
    import sys
    import time
    from functools import partial

    from tqdm import tqdm

    from . import show
    from .runs.files import replace
    from .runs.paired import Turns
    from .runs.project import find_project
    from .runs.stages import STAGES
    from .runs.tune import HOPELESS, TuneResult, destination
    from .runs.tune import tune as run_tune

    stages = only.replace(" ", "").split(",") if only else list(STAGES)
    if unknown := [stage for stage in stages if stage not in STAGES]:
        raise UsageError(f"there is no stage {unknown[0]}: choose from {', '.join(STAGES)}")
    deadline = time.monotonic() + 60 * minutes
    project = find_project(python, options, processes)
    file = destination(project.folder)
    result = TuneResult()
    interrupted = False
    with trainer_of(project, seconds, deadline) as trainer:
        bar = tqdm(unit=" trials", disable=None)
        say = partial(bar.write, file=sys.stderr if json else sys.stdout)
        turns = Turns(trainer.measure, rounds, deadline, bar.update, longest_s=trainer.first_s)
        turns.worst = HOPELESS
        try:
            run_tune(trainer, stages, turns, result, say)
        except (KeyboardInterrupt, SystemExit):  # the latter by SIGTERM
            interrupted = True
        bar.close()
    if result.kept:
        replace(file, result.content(trainer))
    facts = result.facts() | {"interrupted": interrupted}
    show.result(facts, lambda _: result.text(), json)
    if interrupted:
        raise typer.Exit(130)


def bench(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="NAME", help="Techniques; all by default.")
    ] = None,
    rounds: Rounds = 5,
    seconds: Seconds = 3.0,
    options: Given = None,
    processes: Processes = 1,
    python: Python = None,
    json: Json = False,
) -> None:
    """Measure how much faster each technique makes the training."""
    from tqdm import tqdm

    from . import show
    from .runs import bench as results
    from .runs.paired import Comparison, Turns
    from .runs.project import find_project

    project = find_project(python, options, processes)
    comparisons: dict[str, Comparison] = {}
    with trainer_of(project, seconds) as trainer:
        techniques = results.applicable(trainer)
        chosen = names or list(techniques)
        if unknown := [name for name in chosen if name not in techniques]:
            known = ", ".join(techniques)
            raise UsageError(f"{unknown[0]} cannot be measured here: choose from {known}")
        bar = tqdm(total=2 * rounds * len(chosen), unit=" trials", disable=None)
        turns = Turns(trainer.measure, rounds, tick=bar.update, widest=results.WIDEST)
        for name in chosen:
            technique = techniques[name]
            turns.compare(technique.without, {name: technique.enabled}, comparisons)
        bar.close()
    record = results.record(trainer, techniques, comparisons)
    show.result(record, results.table, json)


def compare(
    options_of_candidate: Annotated[
        list[str] | None,
        typer.Option(
            "--with", metavar="KEY=VALUE", help="Option of the candidate; can be repeated."
        ),
    ] = None,
    candidate: Annotated[
        list[str] | None,
        typer.Option(metavar="OPTIONS", help="Another candidate: 'optim.lr=1e-2 model.width=64'."),
    ] = None,
    base: Annotated[
        str | None,
        typer.Option(help="Commit whose code is the base; the working tree's by default."),
    ] = None,
    metric: Annotated[
        str | None,
        typer.Option(
            help="Validation metric, or samples_per_second; train.monitor, or the loss, by default."
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(min=2, help="Most pairs of runs, each with a seed.")] = 8,
    hours: Annotated[
        float | None, typer.Option(min=0.0, help="Time budget, after which no new pair begins.")
    ] = None,
    options: Given = None,
    processes: Processes = 1,
    python: Python = None,
    log: Annotated[bool, typer.Option("--log", help="Print the comparisons so far.")] = False,
    json: Json = False,
) -> None:
    """Say whether other options train better than the project's.

    Trains both with the same seeds, and ends as soon as the difference is clear. The same command
    goes on after Ctrl-C.
    """
    from . import show
    from .runs import compare as runs_compare
    from .runs.project import find_folder, find_project

    file = find_folder() / "runs" / runs_compare.LOG
    if log:
        records = runs_compare.read_log(file)
        show.result({"comparisons": records}, lambda _: runs_compare.log_table(records), json)
        return
    project = find_project(python, options, processes)
    candidates = candidates_of(options_of_candidate or [], candidate or [], base)
    with trainer_of(project) as trainer:
        request = runs_compare.Request(trainer, candidates, base, metric, seeds, hours)
        results, interrupted = request.run()
    if not interrupted:
        compared = [result for result in results if result["verdict"] != "not compared"]
        runs_compare.append(file, compared)
    facts = {"comparisons": results, "interrupted": interrupted}
    show.result(facts, lambda _: runs_compare.answers(results), json)
    if interrupted:
        raise typer.Exit(130)


def candidates_of(options: list[str], others: list[str], base: str | None) -> list[list[str]]:
    """Return the options of each candidate; none of them if it is the working tree itself."""
    from .runs.project import words

    candidates = [words(text, "--candidate") for text in others]
    if options or (base and not candidates):
        candidates.insert(0, options)
    if not candidates:
        raise UsageError("nothing to compare: pass --with KEY=VALUE, --candidate or --base")
    return candidates


@contextmanager
def trainer_of(
    project: "TrainedProject",
    seconds: float = 0.0,
    deadline: float = float("inf"),
) -> "Iterator[Trainer]":
    """Return what trains a project, with a temporary folder, after its first trial."""
    import tempfile

    from .runs.trials import Trainer
    from .scratch import scratch_folder

    with scratch_folder(Path(tempfile.gettempdir()), "trials") as folder:
        yield Trainer(project, seconds, folder, deadline)
