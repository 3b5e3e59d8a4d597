"""Run tests as other CPUs would.

`make test-cpus`, or `python tests/support/cpus.py avx2 rounding-1`.

torch, oneDNN and MKL choose their kernels by the instructions that a CPU has, and variables
restrict them. They give no CPU more than it has: such a setting is named in the table, and not run.
`rounding/emulated_rounding.py` emulates on every CPU that other kernels have other last digits.
"""

import argparse
import os
import re
import shlex
import site
import subprocess
import sys
import time
import venv
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "build/cpus"
ROUNDING = Path(__file__).with_name("rounding")
AVX512 = frozenset({"avx512f", "avx512bw", "avx512dq", "avx512vl"})
TESTS = ["tests/engine", "tests/template/test_projects.py::test_rendered_tests_pass"]
TESTS += ["tests/template/test_projects.py::test_rendered_tests_of_other_frameworks_pass"]
"""The engine, and a project of each framework and model."""


@dataclass(frozen=True)
class Setting:
    """Variables that make this CPU compute as another one."""

    name: str
    """What the table calls it."""
    variables: dict[str, str]
    """The variables."""
    flags: frozenset[str] = frozenset()
    """The flags of /proc/cpuinfo that this CPU needs."""
    cores: int = 1
    """The cores that this machine needs."""


def restricted(
    name: str,
    torch: str,
    onednn: str,
    flags: frozenset[str],
) -> Setting:
    """Return a setting with some instructions for torch and oneDNN."""
    return Setting(name, {"ATEN_CPU_CAPABILITY": torch, "ONEDNN_MAX_CPU_ISA": onednn}, flags)


SETTINGS = [
    restricted("sse", "default", "SSE41", frozenset({"sse4_1"})),
    restricted("avx2", "avx2", "AVX2", frozenset({"avx2"})),
    restricted("avx512", "avx512", "AVX512_CORE", AVX512),
    restricted("avx512-bf16", "avx512", "AVX512_CORE_BF16", AVX512 | {"avx512_bf16"}),
    restricted(
        "amx", "avx512", "AVX512_CORE_AMX", AVX512 | {"avx512_bf16", "amx_tile", "amx_bf16"}
    ),
    Setting("mkl-avx2", {"MKL_ENABLE_INSTRUCTIONS": "AVX2"}, frozenset({"avx2"})),
    Setting("one-thread", {"OMP_NUM_THREADS": "1"}),
    Setting("two-threads", {"OMP_NUM_THREADS": "2"}, cores=2),
    Setting("rounding-1", {"EMULATED_ROUNDING": "1"}),
    Setting("rounding-2", {"EMULATED_ROUNDING": "2"}),
]


def reason_not_to_run(
    setting: Setting,
    flags: set[str],
    cores: int,
) -> str:
    """Return what this machine lacks, or nothing."""
    if missing := sorted(setting.flags - flags):
        return f"this CPU has no {', '.join(missing)}"
    return "" if cores >= setting.cores else f"this machine has {cores} core"


def flags_of_cpu() -> set[str]:
    """Return the flags of this CPU; none if it is not a x86 with Linux."""
    file = Path("/proc/cpuinfo")
    found = (
        re.search(
            r"^flags\s*: (.*)$",
            file.read_text(),
            re.MULTILINE,
        )
        if file.exists()
        else None
    )
    return set(found[1].split()) if found else set()


def make_environment(folder: Path) -> Path:
    """Create an environment with the packages of this one, whose programs import the emulation.

    Return its Python.
    """
    venv.create(folder, clear=True, symlinks=True)
    (packages,) = folder.glob("lib/python3*/site-packages")
    lines = [f"import site; site.addsitedir({found!r})" for found in site.getsitepackages()]
    (packages / "cpus.pth").write_text(
        "\n".join([*lines, str(ROUNDING), "import emulated_rounding"])
    )
    return folder / "bin/python"


def run(
    python: Path,
    setting: Setting,
    output: Path,
    options: list[str],
) -> tuple[bool, str]:
    """Run the tests with a setting; return whether all passed, and the last line of pytest."""
    # every test would take a day
    others = {"EVERY_TEST"}.union(*(it.variables for it in SETTINGS))
    environment = {
        name: value for name, value in os.environ.items() if name not in others
    } | setting.variables
    command = [
        str(python),
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-n",
        str(os.cpu_count()),
        *TESTS,
        *options,
    ]
    with output.open("w") as stream:
        done = subprocess.run(
            command, cwd=ROOT, env=environment, stdout=stream, stderr=stream, check=False
        )
    lines = output.read_text().splitlines() or [""]
    for line in lines:
        if line.startswith(("FAILED ", "ERROR ")):
            print(line, flush=True)
    return done.returncode == 0, lines[-1].strip("= ")


def main(arguments: list[str] | None = None) -> int:
    """Run each setting that this machine can have; return 1 if a test failed."""
    parser = argparse.ArgumentParser(description="Run tests as other CPUs would.")
    names = [setting.name for setting in SETTINGS]
    parser.add_argument(
        "names", nargs="*", metavar="SETTING", help=f"of {', '.join(names)}; default: all"
    )
    parser.add_argument(
        "--pytest",
        default=[],
        type=shlex.split,
        help="further options of pytest",
    )
    chosen = parser.parse_args(arguments)
    if unknown := {*chosen.names} - {*names}:
        parser.error(f"no setting {', '.join(sorted(unknown))}: choose from {', '.join(names)}")
    FOLDER.mkdir(parents=True, exist_ok=True)
    python = make_environment(FOLDER / "venv")
    table = list[str]()
    failed = False
    for setting in SETTINGS:
        if chosen.names and setting.name not in chosen.names:
            continue
        result = reason_not_to_run(setting, flags_of_cpu(), os.cpu_count() or 1)
        if result:
            result = f"not run: {result}"
        else:
            begin = time.monotonic()
            passed, last = run(python, setting, FOLDER / f"{setting.name}.txt", chosen.pytest)
            failed |= not passed
            result = (
                f"{'passed' if passed else 'FAILED'} in {time.monotonic() - begin:.0f} s: {last}"
            )
        print(f"{setting.name}: {result}", flush=True)
        variables = " ".join(f"{name}={value}" for name, value in setting.variables.items())
        table.append(f"{setting.name:12} {variables:58} {result}")
    print("\n".join(["", *table, "", f"outputs: {FOLDER}"]))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
