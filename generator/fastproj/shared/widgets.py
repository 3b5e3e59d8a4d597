"""Prompts in the terminal, made with questionary: readable at 60 columns, and removed once they are answered.

A title is the question; details are lines below it. Each function returns the answer.

Raises:
    KeyboardInterrupt: after Ctrl-C.
    EOFError: after Ctrl-D, or if the terminal was closed.
"""

import os
import sys
import textwrap
from collections.abc import Callable
from typing import Any

import questionary
from prompt_toolkit import print_formatted_text
from prompt_toolkit.document import Document
from prompt_toolkit.filters import Always, Condition
from prompt_toolkit.formatted_text import FormattedText
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.layout import Dimension
from questionary.prompts.common import InquirerControl

_STYLE = questionary.Style(
    [
        ("qmark", "fg:ansigreen bold"),
        ("question", "bold"),
        ("answer", "noinherit fg:ansicyan"),
        ("pointer", "fg:ansicyan bold"),
        ("highlighted", "fg:ansicyan bold"),
        ("instruction", "fg:ansibrightblack"),
        ("placeholder", "fg:ansibrightblack"),
    ]
)

Check = Callable[[Any], str]
"""Returns what is wrong with an answer; empty if nothing is."""


def ask_text(title: str, details: list[str], default: str, hint: str, check: Check, secret: bool = False) -> str:
    """Ask for a text in an empty field; the default, which Enter accepts, is not in it. `hint` is shown instead."""
    keys = KeyBindings()

    @keys.add("enter")
    @keys.add("escape", "enter")
    def accept(event: KeyPressEvent) -> None:
        event.current_buffer.document = Document(event.current_buffer.text.strip("\r\n") or default)
        event.current_buffer.validate_and_handle()

    prompt = questionary.text(
        wrapped(title, 2),
        qmark="?",
        instruction=_below([*details, ">"]),
        placeholder=[("class:placeholder", hint)],
        validate=lambda text: wrapped(check(text), 0) or True,
        validate_while_typing=False,
        is_password=secret,
        key_bindings=keys,
        style=_STYLE,
    )
    return str(_run(prompt))


def ask_yes_or_no(title: str, details: list[str], default: bool) -> bool:
    """Ask for y or n."""
    instruction = _below([*details, f"y: yes, n: no, Enter: {'yes' if default else 'no'}"])
    return bool(_run(questionary.confirm(wrapped(title, 2), default, qmark="?", instruction=instruction, style=_STYLE)))


def select(
    title: str, details: list[str], choices: list[questionary.Choice], default: Any = None, keys: str = ""
) -> Any:
    """Ask for one of the choices, which typing filters, and return its value; `keys` replaces their description."""
    _wrap_titles(choices, 5)
    filtered = not any(choice.disabled for choice in choices)  # questionary could select one of these
    keys = keys or f"Arrow keys: move,{' typing: filter,' * filtered} Enter: select"
    prompt = questionary.select(
        wrapped(title, 2),
        choices,
        default,
        qmark="?",
        instruction=_below([*details, keys]),
        use_jk_keys=False,
        use_search_filter=filtered,
        style=_STYLE,
    )
    control = next(it for it in prompt.application.layout.find_all_controls() if isinstance(it, InquirerControl))
    control.selected_options = []  # the pointer shows the default
    if filtered:
        _refuse_without_match(prompt.application, control)
    return _run(prompt)


def check_off(title: str, details: list[str], choices: list[questionary.Choice], check: Check) -> list[Any]:
    """Ask for any number of the choices, and return their values."""
    _wrap_titles(choices, 7)
    validate: Any = lambda answer: wrapped(check(answer), 0) or True  # noqa: E731 - questionary declares its argument too narrowly
    instruction = _below([*details, "Arrow keys: move, Space: toggle, Enter: continue"])
    prompt = questionary.checkbox(
        wrapped(title, 2), choices, validate=validate, qmark="?", instruction=instruction, style=_STYLE
    )
    return list(_run(prompt))


def print_answer(title: str, answer: str) -> None:
    """Print a question that was answered."""
    parts = [("class:qmark", "? "), ("class:question", f"{wrapped(title, 2)} "), ("class:answer", wrapped(answer, 2))]
    print_formatted_text(FormattedText(parts), style=_STYLE)


def wrapped(text: str, indent: int) -> str:
    """Wrap a text that is shown in this column at the end of words, and not where the terminal ends."""
    width = (os.get_terminal_size(sys.stdout.fileno()).columns or 80) - indent - 1
    lines = textwrap.wrap(text, max(width, 20), break_long_words=False, break_on_hyphens=False)
    return f"\n{' ' * indent}".join(lines)


def _below(lines: list[str]) -> str:
    return "".join(f"\n  {wrapped(line, 2)}" for line in lines)


def _wrap_titles(choices: list[questionary.Choice], indent: int) -> None:
    for choice in choices:
        choice.title = wrapped(str(choice.title), indent)


def _refuse_without_match(application: Any, control: Any) -> None:
    """Let Enter select nothing if no choice matches the typed filter: questionary then shows all choices."""

    @Condition
    def nothing() -> bool:
        filtered = (control.search_filter or "").lower()
        return not any(filtered in str(choice.title).lower() for choice in control.choices)

    application.key_bindings.add("enter", eager=True, filter=nothing)(lambda event: None)

    def typed() -> list[tuple[str, str]]:
        return [*(control.get_search_string_tokens() or []), ("", " nothing matches: press Backspace" * nothing())]

    for window in application.layout.find_all_windows():
        if getattr(window.content, "text", None) == control.get_search_string_tokens:
            window.content.text = typed


def _run(prompt: Any) -> Any:
    """Ask, with long lines wrapped, and then remove the question from the screen."""
    for window in prompt.application.layout.find_all_windows():
        window.wrap_lines = Always()
        if window.height == 1:  # what is wrong with an answer
            window.height = Dimension(min=1)
    prompt.application.erase_when_done = True
    keys = prompt.application.key_bindings
    if isinstance(keys, KeyBindings):  # those of a list, which ignore Ctrl-D
        keys.add("c-d", eager=True)(lambda event: event.app.exit(exception=EOFError))
    return prompt.unsafe_ask()
