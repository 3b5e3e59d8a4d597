"""The output of `fastproj add`, `remove` and `components`, as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import show

if TYPE_CHECKING:
    from .updating.components import Changed, Component


def listed(components: list[Component]) -> str:
    """Format the components in one line each; those that the project's framework does not have come last."""
    width = max((len(it.name) for it in components), default=0)
    lines = [
        f"{it.name:{width}}  {'installed' if it.installed else '':9}  {it.about}".rstrip()
        for it in components
        if not it.refused
    ]
    others = [f"{it.name:{width}}  {it.refused}" for it in components if it.refused]
    return "\n".join([*lines, *(["", "Not for this project:", *others] if others else [])])


def added(changed: Changed, dry_run: bool) -> str:
    """Describe what `add` did: files, how to enable each component, what to install, and next steps."""
    done = changed.updated
    if not changed.names:
        return f"{done.project.root} has these components already: nothing was changed."
    lines = [
        f"{'Would add' if dry_run else 'Added'} {', '.join(changed.names)} to {done.project.root}, from {done.after}."
    ]
    lines += [f"  {name} is required" for name in changed.required]
    lines += show.changes(done)
    new = [changed.components[name] for name in changed.names]
    lines += ["", "How to use it:"]
    for it in new:
        if it.file:
            lines.append(f"  {it.file}; its first lines say how")
        elif it.kind == "command":
            lines.append(f"  components/{it.section}.py; its first lines say how")
        elif it.kind is None:
            lines.append(f"  --{it.section}.enabled true, or in configs/default.yaml: {it.section}: {{enabled: true}}")
    packages = [package for it in new for package in it.packages]
    if packages:
        lines.append(f"  make setup, which installs {', '.join(packages)}")
    return _ending(changed, lines, f"Add {', '.join(changed.names)}", dry_run)


def removed(changed: Changed, dry_run: bool) -> str:
    """Describe what `remove` did."""
    done = changed.updated
    if not changed.names:
        return f"{done.project.root} does not have these components: nothing was changed."
    lines = [f"{'Would remove' if dry_run else 'Removed'} {', '.join(changed.names)} from {done.project.root}."]
    lines += show.changes(done)
    sections = [it for it in (changed.components[name] for name in changed.names) if not it.file and not it.kind]
    lines += [f"  Remove the section {it.section} from your config files, if it is there." for it in sections]
    return _ending(changed, lines, f"Remove {', '.join(changed.names)}", dry_run)


def _ending(changed: Changed, lines: list[str], message: str, dry_run: bool) -> str:
    done = changed.updated
    if dry_run:
        return "\n".join([*lines, "", done.diff])
    return "\n".join([*lines, "", *show.next_steps(done, message)])
