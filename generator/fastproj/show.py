"""The output of the commands: facts, which are shown as text or as JSON."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import printable, wrapped
from .template.answers import ANSWERS, as_text, option, shown_name

if TYPE_CHECKING:  # no command needs all of them
    from .creating.hardware import Machine
    from .creating.project import Project
    from .updating.components import Component, Table
    from .updating.merge import Merge
    from .updating.update import UpdateResult

_PAGES = Path(__file__).parent / "pages"
"""The docs' pages of the groups of components."""


def result(
    facts: dict[str, Any],
    text: Callable[[Any], str],
    as_json: bool,
    done: bool = False,
) -> None:
    """Print the facts that a command returns, as JSON, or as text that is wrapped for a terminal.

    What is `done` is a success also if nobody can read it.
    """
    shown = json_text(facts) if as_json else text(facts)
    if sys.stdout is not None and sys.stdout.isatty():
        # lines that start with spaces are commands and paths, and those of a diff have no capital
        shown = "\n".join(wrapped(it) if it[:1].isupper() else it for it in shown.split("\n"))
    try:
        print(shown, flush=True)
    except OSError as error:
        if not done:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        print(f"fastproj: {unwritable(error)}", file=sys.stderr)


def unwritable(error: OSError) -> str:
    """Return the message for an output that cannot be written."""
    return f"cannot write the output ({error.strerror}): check where stdout goes"


def json_text(facts: dict[str, Any]) -> str:
    """Format facts as JSON, in which numbers that are not finite are null."""
    finite = json.loads(json.dumps(facts, default=str), parse_constant=lambda _: None)
    return _text(json.dumps(finite, indent=2).split("\n"))


def machine(machine: Machine) -> str:
    """Describe a machine in two lines, and what could not be detected."""
    counted = Counter((gpu.name, gpu.tensor_cores) for gpu in machine.gpus)
    gpus = [
        f"{count} x {name}, {'no Tensor Cores' if newest == 'none' else newest}"
        for (name, newest), count in counted.items()
    ]
    memory = f"{machine.memory_gib:.0f} GiB of memory"
    bf16 = f"bf16 by {machine.bf16}" if machine.bf16 else "no bf16 in hardware"
    lines = [f"CPU   {_count(machine.cores, 'core')}, {memory}, {bf16}"]
    lines.append(f"GPUs  {'; '.join(gpus) or 'none'}")
    return _text(lines + [f"Note: {note}." for note in machine.notes])


def detected(machine: Machine) -> str:
    """Describe a machine in one line, and how to answer the questions that follow."""
    gpus = "no GPU"
    if machine.gpus:
        names = " and ".join(dict.fromkeys(gpu.name for gpu in machine.gpus))
        gpus = f"{_count(len(machine.gpus), 'GPU')} ({names})"
    hints = "Enter accepts the default in gray; Ctrl-C cancels."
    return _text([f"Detected: {_count(machine.cores, 'CPU core')}, {gpus}", hints, ""])


def new_project(
    project: Project,
    machine: Machine,
    template: str | None,
    has_git: bool,
) -> dict[str, Any]:
    """Return the facts about a new project: answers, notes on the hardware, and next steps."""
    again = ["fastproj", "new", project.path.name, "--yes"]
    for name, answer in project.answers.items():
        if name in ANSWERS:
            again += [option(name), as_text(answer)]
        elif name != "project_name":
            again += ["--data", f"{name}={as_text(answer)}"]
    again += ["--template", template] if template else []
    again += [] if has_git else ["--no-git"]
    return {
        "project": str(project.path),
        "files": project.files,
        "git": project.git,
        "answers": project.answers,
        "notes": machine.notes,
        "next": [f"cd {shlex.quote(str(project.path))}", "make setup", "make train"],
        "again": shlex.join(again),
    }


def created(facts: dict[str, Any]) -> str:
    """Describe a new project."""
    answers = facts["answers"]
    content = f"{answers.get('model', 'a project')} in {answers.get('framework', 'the template')}"
    files = _count(facts["files"], "file")
    lines = [f"Created {facts['project']}: {content}, {files}; {facts['git']}."]
    lines += [f"Note: {note}." for note in facts["notes"]]
    lines += ["", "Next:", *_commands(facts["next"])]
    return _text([*lines, "", "The same project again:", *_commands([facts["again"]])])


def _commands(commands: list[str]) -> list[str]:
    return [f"  {command}" for command in commands]


def change(
    result: UpdateResult,
    dry_run: bool,
    components: Iterable[Component] = (),
    asked: Iterable[str] = (),
) -> dict[str, Any]:
    """Return the facts about an update; `components` are those that it adds or removes."""
    from .updating.merge import Merge

    merge = result.merge or Merge("", "")  # nothing to do
    packages: list[str] = []
    for component in components:
        packages += component.entry.get("packages", [])
    facts = {
        "project": str(result.project.root),
        "from": result.project.version,
        "to": result.after,
        "dry_run": dry_run,
        "up_to_date": result.merge is None,
        "answers": {shown_name(name): values for name, values in result.answers.items()},
        "components": [component.name for component in components],
        "required": [component.name for component in components if component.name not in asked],
        "use": {component.name: component.use for component in components},
        "sections": [component.section for component in components if component.has_switch],
        "packages": packages,
        "files": _files(merge),
        "renamed": merge.renamed,
        "conflicts": sorted(merge.unmerged),
        "notes": [*merge.notes, *merge.conflicts],
        "diff": "",
        "next": [],
        "undo": [],
    }
    if result.merge and not dry_run:
        facts |= _next_steps(result, merge)
    elif result.merge and components:
        trees = [merge.head, merge.tree]
        patch = result.project.repository.git("diff-tree", "-r", "-p", "--no-ext-diff", *trees)
        facts["diff"] = patch.expandtabs()
    return facts


def _files(merge: Merge) -> dict[str, str]:
    """Return what happened to each file that an update changed, except renamed ones."""
    kinds = {}
    for path, (was, now) in merge.changes.items():
        kinds[path] = "changed" if was and now else "removed" if was else "added"
    kinds |= dict.fromkeys(merge.unmerged, "conflict")
    for was, now in merge.renamed.items():
        kinds.pop(was, None)
        if kinds.get(now) == "added":
            del kinds[now]
    return kinds


def _next_steps(result: UpdateResult, merge: Merge) -> dict[str, list[str]]:
    """Return the commands that commit what is staged, or undo it."""
    from .updating.apply import base_of

    top = result.project.repository.top
    where = result.project.repository.where
    git = "git" if os.path.samefile(".", top) else f"git -C {shlex.quote(str(top))}"
    commit = [f"{git} diff --staged", f"{git} commit -m {shlex.quote(result.message)}"]
    base = base_of(result.project.repository, merge)
    source = "" if base == "HEAD" else f"--source={base} "
    restore = f"restore {source}--staged --worktree -- {shlex.quote(where)}"
    undo = [f"{git} {restore}", *([f"{git} {merge.undo}"] if merge.undo else [])]
    if result.conflicts:
        commit = [f"{git} cherry-pick --continue"]
        tree = merge.tree[:12]
        unstage = f"{git} read-tree --reset {tree}"
        restore = f"{git} read-tree --reset -u {tree} HEAD"
        end = f"{git} -c core.hooksPath=/dev/null cherry-pick --quit"
        undo = [*undo[1:], f"{unstage} && {restore} && {end}"]
    return {"next": commit, "undo": undo}


def updated(facts: dict[str, Any]) -> str:
    """Describe an update: new answers, changed files, conflicts and next steps."""
    if facts["up_to_date"]:
        return _text([f"{facts['project']} is up to date: {facts['to']}, with these answers."])
    verb = "Would update" if facts["dry_run"] else "Updated"
    lines = [f"{verb} {facts['project']} from {facts['from']} to {facts['to']}."]
    for name, (was, now) in facts["answers"].items():
        answer = "(no longer asked)" if now is None else _answer(now)
        lines.append(f"  {name}: {_answer(was)} -> {answer}")
    return _text([*lines, *_changes(facts), *_ending(facts)])


def _changes(facts: dict[str, Any]) -> list[str]:
    """Return a line for each file that an update changed or left alone."""
    lines = sorted(f"  {kind:9} {path}" for path, kind in facts["files"].items())
    lines += [f"  renamed   {was} -> {now}" for was, now in sorted(facts["renamed"].items())]
    changed = lines or ["  no file changes"]
    return [*changed, *_commands(facts["notes"])]


def _ending(facts: dict[str, Any]) -> list[str]:
    """Return the diff of a dry run, or the next steps, after an empty line."""
    if facts["dry_run"]:
        return ["", *facts["diff"].split("\n")] if facts["diff"] else []
    steps = ["", "Next, review and commit:", *_commands(facts["next"])]
    if facts["conflicts"]:
        resolve = "Resolve the conflicts (git status lists them), git add the files, "
        steps[1] = f"{resolve}then review and commit:"
    for command in facts["undo"]:
        kept = "keep later changes of other files"
        if command.endswith(" --abort"):
            kept += ", except staged ones"
        elif command.endswith(" --quit"):
            kept = "later changes of the files above, also where git refuses to abort"
        elif " restore " in command:
            kept = "all later changes of tracked files here"
        steps += [f"Or undo it, and {kept}:", f"  {command}"]
    return steps


def status_text(facts: dict[str, Any]) -> str:
    """Format a status as text."""
    newest = (
        f"; {facts['newest']} is available: fastproj update" if facts["behind"] else ", the newest"
    )
    answers = [f"{shown_name(name)}={_answer(value)}" for name, value in facts["answers"].items()]
    return _text(
        [
            f"project   {facts['project']}",
            f"template  {facts['template']}",
            f"version   {facts['version']}{newest}",
            f"answers   {' '.join(answers)}",
        ]
    )


def component_list(components: Table) -> str:
    """Format the components in groups, a line for each; those for other frameworks come last.

    Libraries, which come with the components that need them, are shown if they are installed.
    """
    width = max(map(len, components), default=0)
    groups: dict[str, list[str]] = {}
    others = []
    for name, component in components.items():
        if component.refusal:
            others.append(f"{name:{width}}  {component.refusal}")
        elif component.installed or component.entry.get("kind") != "library":
            installed = "installed" if component.installed else ""
            rows = groups.setdefault(component.entry.get("group", ""), [])
            rows.append(f"{name:{width}}  {installed:9}  {component.entry['about']}")
    if others:
        groups["not for this project"] = others
    blocks = []
    for group, rows in groups.items():
        heading = [f"{group[:1].upper()}{group[1:]}:"] if group else []
        blocks.append("\n".join(map(printable, [*heading, *rows])))
    return "\n\n".join(blocks)


def component_facts(component: Component) -> dict[str, Any]:
    """Return what is known of a component without its page."""
    return {
        "name": component.name,
        "about": component.entry["about"],
        "group": component.entry.get("group", ""),
        "installed": component.installed,
        "not_for_this_project": component.refusal,
        "frameworks": component.entry.get("frameworks", "all"),
        "requires": component.entry.get("requires", []),
        "packages": component.entry.get("packages", {}),
        "use": component.use,
    }


def component_page(component: Component, options: dict[str, Any]) -> dict[str, Any]:
    """Return what is known of a component, with its options and its page in the docs."""
    file = _PAGES / f"{component.entry.get('group', '').replace(' ', '-')}.md"
    text = file.read_text(encoding="utf-8") if file.is_file() else ""
    page = text.partition(f"\n## {component.name}\n")[2].partition("\n## ")[0].strip()
    return component_facts(component) | {"options": options, "page": page}


def component_text(facts: dict[str, Any]) -> str:
    """Format what is known of a component: a line for each fact, and its page."""
    lines = []
    for name, fact in facts.items():
        if fact and name not in ("options", "page"):
            text = ", ".join(fact) if isinstance(fact, list | dict) else str(fact)
            lines.append(f"{name.replace('_', ' '):20}  {text}")
    for name, key in facts["options"].items():
        values = f"{key['type']} {key['range']}".strip()
        lines += ["", f"--{name} = {key['default']}  ({values})", f"  {key['about']}"]
    return _text([*lines, "", *facts["page"].split("\n")])


def added(facts: dict[str, Any]) -> str:
    """Describe what `add` did: files, how to enable each component, and next steps."""
    root = facts["project"]
    if not facts["components"]:
        return _text([f"{root} has these components already: nothing was changed."])
    verb = "Would add" if facts["dry_run"] else "Added"
    lines = [f"{verb} {', '.join(facts['components'])} to {root}, from {facts['to']}."]
    lines += [f"  {name} is required" for name in facts["required"]]
    lines += [*_changes(facts), "", "How to use it:"]
    lines += [f"  {use}" for use in facts["use"].values() if use]
    if facts["packages"]:
        lines.append(f"  make setup, which installs {', '.join(facts['packages'])}")
    return _text([*lines, *_ending(facts)])


def removed(facts: dict[str, Any]) -> str:
    """Describe what `remove` did."""
    root = facts["project"]
    if not facts["components"]:
        return _text([f"{root} does not have these components: nothing was changed."])
    verb = "Would remove" if facts["dry_run"] else "Removed"
    lines = [f"{verb} {', '.join(facts['components'])} from {root}.", *_changes(facts)]
    for section in facts["sections"]:
        lines.append(f"  Remove the section {section} from your config files, if it is there.")
    return _text([*lines, *_ending(facts)])


def _text(lines: Iterable[str]) -> str:
    return "\n".join(map(printable, lines))


def _count(
    number: int,
    noun: str,
) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _answer(value: Any) -> str:
    return "(not asked)" if value is None else as_text(value)
