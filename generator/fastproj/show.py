"""What the commands print."""

import json
import shlex
from dataclasses import asdict
from pathlib import Path
from typing import Any

from . import git
from .hardware import Machine
from .project import Rendered

# Options in the order in which they are asked.
OPTIONS = ("gpus", "nodes", "tensor_cores", "framework", "model", "launchers", "author", "licence")


def default_answers(machine: Machine) -> dict[str, Any]:
    """Return answers that follow from the machine and from git's own settings."""
    name = git.run(Path("/"), "config", "user.name").stdout.strip()
    known = name.isprintable() and 0 < len(name) <= 100 and "\N{REPLACEMENT CHARACTER}" not in name
    return machine.answers() | ({"author": name} if known else {})


def machine_json(machine: Machine) -> str:
    """Return all that was found, and the answers that follow."""
    return json.dumps(asdict(machine) | {"answers": machine.answers()}, indent=2)


def machine_text(machine: Machine) -> str:
    """Return the same for a reader."""
    lines = [f"system   {machine.system}"]
    memory = f", {machine.memory_mib / 1024:.1f} GiB of memory" if machine.memory_mib else ""
    bf16 = "with" if machine.cpu_bf16 else "without"
    lines.append(f"cpu      {machine.cpu}: {machine.cores} usable cores{memory}, {bf16} bf16 instructions")
    for number, gpu in enumerate(machine.gpus):
        size = f"{gpu.memory_mib / 1024:.1f} GiB" if gpu.memory_mib else "memory unknown"
        capability = f", {gpu.capability}" if gpu.capability else ""
        lines.append(f"gpu {number}    {gpu.name}{capability}, {size}, Tensor Cores: {gpu.tensor_cores}")
    if not machine.gpus:
        lines.append("gpus     none")
    lines += [f"note     {note}" for note in machine.notes]
    lines.append(
        "answers  " + " ".join(f"--{key.replace('_', '-')} {value}" for key, value in machine.answers().items())
    )
    return "\n".join(lines)


def rendered(made: Rendered, machine: Machine, output: Path, template: str | None, no_git: bool) -> str:
    """Return what was made, what of the machine is doubtful, what to type next, and the command that makes it again."""
    answers = made.answers
    what = f"{answers.get('model', 'a project')} in {answers.get('framework', 'the template')}"
    again = ["fastproj", "new", made.path.name]
    for key in OPTIONS:
        if key in answers:
            value = answers[key]
            text = ",".join(value) or "none" if isinstance(value, list) else str(value)
            again += [f"--{key.replace('_', '-')}", text]
    for key, value in answers.items():
        if key not in (*OPTIONS, "project_name"):
            again += ["--data", f"{key}={value if isinstance(value, str) else json.dumps(value)}"]
    again += ["--template", template] if template else []
    again += ["--output", str(output)] if output != Path() else []
    again += ["--no-git"] if no_git else []
    return "\n".join(
        [
            f"Made {made.path}: {what}, {made.files} files; {made.git}.",
            *(f"Note: {note}." for note in machine.notes),
            "",
            "Next:",
            f"  cd {shlex.quote(str(made.path))}",
            "  make setup",
            "  make train",
            "",
            "To render it again:",
            f"  {shlex.join([*again, '--yes'])}",
        ]
    )
