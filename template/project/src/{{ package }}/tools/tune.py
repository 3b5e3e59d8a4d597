"""Find the fastest settings of this machine: short runs of the training command, and a config of what was proven.

    python -m <package>.tools.tune --config configs/default.yaml
    python -m <package>.tools.tune --only loader --budget 120
    python -m <package>.train --config configs/default.yaml --config configs/tuned.yaml

Other options are those of the training command. The global batch and the learning rate stay as they are.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..errors import UserError
from . import trial
from .tuning import result
from .tuning.tuner import STAGES, Tuner


@contextmanager
def _headroom() -> Iterator[None]:
    """Lower a limit of the address space, so that trials leave a share of it free."""
    try:
        import resource
    except ImportError:  # not on Windows
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    if soft == resource.RLIM_INFINITY:
        yield
        return
    resource.setrlimit(resource.RLIMIT_AS, (int(0.9 * soft), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _stages(text: str) -> list[str]:
    chosen = text.split(",")
    wrong = [name for name in chosen if name not in STAGES]
    if wrong:
        raise argparse.ArgumentTypeError(f"there is no stage {wrong[0]!r}; stages: {', '.join(STAGES)}")
    return [name for name in STAGES if name in chosen]


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1e9:
        raise argparse.ArgumentTypeError(f"{text} is no number of seconds")
    return value


def parse(argv: list[str] | None) -> tuple[argparse.Namespace, list[str]]:
    """Return the tool's options, and those of the training command."""
    parser = argparse.ArgumentParser(
        prog=f"python -m {__package__}.tune",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--only",
        type=_stages,
        default=[*STAGES[:3]],
        metavar="STAGES",
        help="comma-separated: batch, loader, speed, and lr, which changes results (default: the first three)",
    )
    parser.add_argument(
        "--budget", type=_seconds, default=600.0, metavar="SECONDS", help="time for all trials (default: 600)"
    )
    parser.add_argument(
        "--larger-global-batch",
        action="store_true",
        help="let the global batch grow with the micro-batch, which changes results; the learning rate follows",
    )
    parser.add_argument(
        "--write",
        type=Path,
        default=Path("configs/tuned.yaml"),
        metavar="FILE",
        help="what other stages have found stays in it (default: configs/tuned.yaml)",
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("runs/tune"),
        metavar="FOLDER",
        help="tune.png, and the trials, which a second start takes up; delete it to measure again (default: runs/tune)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    return parser.parse_known_args(argv)


def main(argv: list[str] | None = None) -> None:
    """Read the command line, run the stages, and write what was found."""
    args, base = parse(argv)
    trial.end_on_signals()
    tuner: Tuner | None = None
    try:
        with _headroom():
            tuner = Tuner(args, trial.configs(base, "configs/default.yaml"))
            tuner.run()
            tuner.write()
    except UserError as error:
        sys.exit(f"error: {error}")
    except SystemExit:
        if tuner is not None and tuner.findings and not args.json:
            print(result.table(tuner.findings))
        print("interrupted: the trials are kept, and the same command goes on from here", file=sys.stderr)
        raise
    if args.json:
        print(json.dumps(tuner.as_json()))
        return
    print(result.table([*tuner.former, *tuner.findings]))
    print(f"\n{tuner.summary()}")
    print(f"written   {args.write}\nfigure    {args.output / 'tune.png'}")


if __name__ == "__main__":
    main()
