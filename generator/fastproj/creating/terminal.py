"""Questions in a terminal: a text, and a list that typing filters.

Ctrl-C raises KeyboardInterrupt, and Esc raises BackError.
"""

import shutil
import textwrap
from dataclasses import dataclass, field
from typing import Any

from prompt_toolkit import Application, PromptSession, print_formatted_text
from prompt_toolkit.filters import Condition
from prompt_toolkit.formatted_text import FormattedText, StyleAndTextTuples
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.layout import (
    ConditionalMargin,
    FormattedTextControl,
    HSplit,
    Layout,
    ScrollbarMargin,
    ScrollOffsets,
    Window,
)
from prompt_toolkit.styles import Style

_STYLE = Style(
    [
        ("mark", "fg:ansigreen bold"),
        ("title", "bold"),
        ("answer", "fg:ansicyan"),
        ("pointed", "fg:ansicyan bold"),
        ("hint", "fg:ansibrightblack"),
        ("problem", "fg:ansired"),
    ]
)
ESCAPE_S = 0.05
"""Seconds after which an escape character is the key Esc, and not the start of an arrow's code."""


class BackError(Exception):
    """The user wants to return to the question before."""


@dataclass(frozen=True)
class Choice:
    """A line of a list."""

    title: str
    value: Any
    group: str = ""


@dataclass
class Menu:
    """A list of choices, of which one or several can be selected."""

    choices: list[Choice]
    several: bool = False
    selected: list[Any] = field(default_factory=list)
    """Values; at first the default."""
    typed: str = ""
    """Filters the choices."""
    pointed: int = 0
    """Place among the matches."""

    def __post_init__(self) -> None:
        groups = list(dict.fromkeys(choice.group for choice in self.choices))
        self.choices.sort(key=lambda choice: groups.index(choice.group))
        self.filter("")

    @property
    def matches(self) -> list[Choice]:
        """The choices with the typed text."""
        typed = self.typed.lower()
        return [it for it in self.choices if typed in f"{it.title} {it.value}".lower()]

    def rows(self) -> StyleAndTextTuples:
        """Return the matches below the names of their groups, with a mark at the pointed one."""
        rows: StyleAndTextTuples = []
        group = ""
        for place, choice in enumerate(self.matches):
            if choice.group != group:
                group = choice.group
                rows.append(("class:hint", f"   {group}\n"))
            box = ""
            if self.several:
                box = "[x] " if choice.value in self.selected else "[ ] "
            title = _wrapped(choice.title, 5 + len(box))
            if place == self.pointed:
                rows.append(("[SetCursorPosition]", ""))
                rows.append(("class:pointed", f" > {box}{title}\n"))
            else:
                rows.append(("", f"   {box}{title}\n"))
        return rows

    def is_cut(self) -> bool:
        """Return whether the rows and about five lines around them are more than fit."""
        lines = sum(row[1].count("\n") for row in self.rows())
        return lines > shutil.get_terminal_size().lines - 5

    def status(self) -> StyleAndTextTuples:
        """Return how many choices there are, match, and are selected."""
        count = f"{len(self.choices)} choices"
        if self.typed and not self.matches:
            return [("class:problem", f'   no match for "{self.typed}": Backspace deletes')]
        if self.typed:
            count = f'{len(self.matches)} of {count} match "{self.typed}"'
        if self.several:
            count += f", {len(self.selected)} selected"
        return [("class:hint", f"   {count}")]

    def move(self, step: int) -> None:
        """Point to another match; the last one is before the first one."""
        if self.matches:
            self.pointed = (self.pointed + step) % len(self.matches)

    def filter(self, typed: str) -> None:
        """Show the matches of a text, and point to the default or to the first one."""
        self.typed = typed
        values = [choice.value for choice in self.matches]
        is_shown = not self.several and self.selected and self.selected[0] in values
        self.pointed = values.index(self.selected[0]) if is_shown and not typed else 0

    def type(self, event: KeyPressEvent) -> None:
        """Add a character, or a pasted text, to the filter."""
        if event.data.isprintable():
            self.filter(self.typed + event.data)

    def delete(self, event: KeyPressEvent) -> None:
        """Delete the last character of the filter."""
        self.filter(self.typed[:-1])

    def toggle(self, event: KeyPressEvent) -> None:
        """Select the pointed choice or not, and show the whole list again."""
        if not self.matches:
            return
        value = self.matches[self.pointed].value
        if value in self.selected:
            self.selected.remove(value)
        else:
            self.selected.append(value)
        if self.typed:
            self.typed = ""
            self.pointed = [choice.value for choice in self.choices].index(value)

    def enter(self, event: KeyPressEvent) -> None:
        """Answer. In a filtered list of several, select the match first, as nobody else would."""
        if self.several and self.typed:
            self.toggle(event)
        elif self.several:
            event.app.exit(result=self.selected)
        elif self.matches:
            event.app.exit(result=self.matches[self.pointed].value)

    def run(self, title: str, details: list[str]) -> Any:
        """Return the value of the selected choice, or a list of the values of several."""
        keys = _keys()
        keys.add("<any>")(self.type)
        keys.add("backspace")(self.delete)
        keys.add("up")(lambda _: self.move(-1))
        keys.add("down")(lambda _: self.move(1))
        keys.add("enter")(self.enter)
        done = "Enter selects"
        if self.several:
            keys.add(" ")(self.toggle)
            done = "Space selects, Enter ends"
        head = _head(title, [*details, f"Arrows move, typing filters, {done}, Esc goes back."])
        control = FormattedTextControl(self.rows, focusable=True, show_cursor=False)
        rows = Window(
            control,
            dont_extend_height=True,
            scroll_offsets=ScrollOffsets(1, 1),
            right_margins=[
                ConditionalMargin(ScrollbarMargin(display_arrows=True), Condition(self.is_cut))
            ],
        )
        above = Window(FormattedTextControl(FormattedText(head)), dont_extend_height=True)
        below = Window(FormattedTextControl(self.status), height=1)
        application: Application[Any] = Application(
            Layout(HSplit([above, rows, below])),
            key_bindings=keys,
            style=_STYLE,
            erase_when_done=True,
        )
        application.ttimeoutlen = ESCAPE_S
        return application.run()


def ask_text(title: str, details: list[str], default: str) -> str:
    """Ask for a line of text; an empty one is the default, which is shown in gray."""
    session: PromptSession[str] = PromptSession(
        style=_STYLE,
        key_bindings=_keys(),
        placeholder=FormattedText([("class:hint", default)]),
        erase_when_done=True,
    )
    session.app.ttimeoutlen = ESCAPE_S
    return session.prompt(FormattedText([*_head(title, details), ("", "  ")])) or default


def show_answer(title: str, answer: str) -> None:
    """Print a question with its answer."""
    line = FormattedText([*_head(title, [])[:-1], ("class:answer", f" {answer}")])
    print_formatted_text(line, style=_STYLE)


def show_problem(problem: str) -> None:
    """Print what is wrong with an answer."""
    print_formatted_text(
        FormattedText([("class:problem", f"  {_wrapped(problem, 2)}")]), style=_STYLE
    )


def _head(title: str, details: list[str]) -> StyleAndTextTuples:
    lines = "".join(f"  {_wrapped(line, 2)}\n" for line in details)
    return [
        ("class:mark", "? "),
        ("class:title", _wrapped(title, 2)),
        ("class:hint", f"\n{lines}"),
    ]


def _wrapped(text: str, indent: int) -> str:
    """Wrap a text that starts at a column, at the end of words and not where the terminal ends."""
    width = max(shutil.get_terminal_size().columns - indent - 2, 20)
    return textwrap.fill(text, width, subsequent_indent=" " * indent)


def _keys() -> KeyBindings:
    """Return the keys that all questions have."""
    keys = KeyBindings()

    @keys.add("escape", eager=True)
    def leave(event: KeyPressEvent) -> None:
        event.app.exit(exception=BackError)

    @keys.add("c-c")
    def interrupt(event: KeyPressEvent) -> None:
        event.app.exit(exception=KeyboardInterrupt)

    return keys
