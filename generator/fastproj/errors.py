"""The errors that end a command with one line instead of a traceback."""

import json
import re
import shutil
import textwrap

OUTDATED = 3
"""Exit status of `status` if there is a newer version."""
CONFLICTS = 4
"""Exit status of an update with conflicts."""


class FastprojError(Exception):
    """An expected failure: what is wrong, where, and how to fix it, in one line."""

    status = 1
    """Exit status of the program."""


class UsageError(FastprojError):
    """The command line has to be corrected: a value is not allowed, or an option is missing."""

    status = 2


def printable(line: str) -> str:
    """Return a text as one line that cannot control a terminal, without passwords.

    Control characters, line breaks and bytes that are not UTF-8 are escaped, as names of files and
    texts of a template may contain them. URLs lose passwords and tokens.
    """
    public = re.sub(r"(https?://)[^\s/@]+@|(\w://[^\s/:@]*:)[^\s/@]*@", r"\1\2***@", line)
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode()
        for character in public
    )


def as_object(message: str) -> str:
    """Return a message as JSON: what is wrong, and how to fix it, which is after its last colon."""
    parts = re.split(" (?=Did you mean |See fastproj )", message, maxsplit=1)
    if len(parts) == 1:
        parts = message.rsplit(": ", 1)
    return json.dumps({"error": parts[0], "hint": "".join(parts[1:])})


def wrapped(line: str) -> str:
    """Return a line that is wrapped at the end of words, and not where the terminal ends."""
    width = shutil.get_terminal_size().columns
    return textwrap.fill(line, width, break_long_words=False, break_on_hyphens=False)
