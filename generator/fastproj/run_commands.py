"""The commands about runs: `report`, `tune` and `bench`."""

from pathlib import Path
from typing import Annotated

import typer

from .shared.errors import UsageError

Runs = Annotated[
    list[Path] | None,
    typer.Argument(
        metavar="RUN", help="Folders of runs, or their names in runs/; the newest run by default."
    ),
]
Page = Annotated[
    Path | None,
    typer.Option(
        "--output", "-o", help="File to write; report.html in the folder of the run by default."
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

    found = read_runs(runs or [])
    print(text(found))
    page = write_page(found, output)
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

    from .runs import project, tuned_file
    from .runs.options import as_text
    from .runs.pairs import Measure
    from .runs.stages import STAGES, Setting
    from .runs.trials import Trainer
    from .runs.tune import Tuned
    from .runs.tune import tune as run_tune

    chosen = [it.strip() for it in only.split(",")] if only else [*STAGES]
    if unknown := [it for it in chosen if it not in STAGES]:
        raise UsageError(f"there is no stage {unknown[0]}: choose from {', '.join(STAGES)}")
    found = project.find_project(python)
    file, machine, tuned = tuned_file.destination(found.folder), found.machine(), Tuned()
    deadline, interrupted = time.monotonic() + 60 * minutes, False
    with Trainer(found, options or "", processes, seconds) as trainer:
        setting = Setting(found, machine, trainer.begin(), processes)
        trials = sum(
            rounds * (len(it) + 3) for stage in chosen if (it := setting.differing(stage, {}))
        )
        with tqdm(total=trials + 2 * rounds, unit="trial", disable=None) as bar:
            try:
                run_tune(
                    setting,
                    chosen,
                    Measure(trainer, rounds, deadline, bar.update),
                    tuned,
                    bar.write,
                )
            except (KeyboardInterrupt, SystemExit):  # the latter by SIGTERM
                interrupted = True
    if tuned.kept:
        tuned_file.write(file, setting, tuned)
        if measured := tuned_file.together(tuned):
            print(measured)
        print(
            f"configs/tuned.yaml has {as_text(tuned.kept)}; make train ARGS='--config configs/tuned.yaml' uses it"
        )
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
        typer.Option("--output", "-o", help="Folder of bench.json and bench.svg; runs by default."),
    ] = None,
) -> None:
    """Measure how much faster each technique makes the training.

    Prints a table and writes a chart.
    """
    from tqdm import tqdm

    from .runs import bench as results
    from .runs import project
    from .runs.pairs import Measure
    from .runs.stages import Setting
    from .runs.techniques import applicable
    from .runs.trials import Trainer

    found = project.find_project(python)
    folder, machine = output or found.folder / "runs", found.machine()
    with Trainer(found, options or "", processes, seconds) as trainer:
        setting = Setting(found, machine, trainer.begin(), processes)
        known = applicable(setting)
        if unknown := [it for it in names or [] if it not in known]:
            raise UsageError(
                f"{unknown[0]} cannot be measured here: choose from {', '.join(known)}"
            )
        chosen = {name: known[name] for name in names or known}
        with tqdm(total=2 * rounds * len(chosen), unit="trial", disable=None) as bar:
            measure = Measure(trainer, rounds, float("inf"), bar.update)
            measured = dict(results.bench(setting, chosen, measure))
    print(results.table([results.cells(name, it) for name, it in measured.items()]))
    results.write_json(folder / "bench.json", results.as_record(setting, chosen, measured))
    results.draw(
        folder / "bench.svg", {name: it.ratios for name, it in measured.items() if it.trials}
    )
    print(f"\n{folder / 'bench.json'} and bench.svg have the rounds of each technique")
