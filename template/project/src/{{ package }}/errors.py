"""The one error that ends a program with a line instead of a traceback, and the check for a missing package."""

from importlib.metadata import PackageNotFoundError, version


class UserError(Exception):
    """One line: what is wrong, where, and the way out."""


def in_one_line(error: UserError) -> str:
    """Return the message; of one that was raised in a loader process, without that process's traceback."""
    return "error: " + str(error).strip().splitlines()[-1].split("UserError: ")[-1]


def needs(package: str, least: str) -> None:
    """Make sure that a package is there.

    Raises:
        UserError: it is not, or is older than its version `least`, such as "2.6".
    """
    way_out = f"pip install '{package}>={least}'"
    try:
        found = version(package)
    except PackageNotFoundError as error:
        raise UserError(f"{package} is not installed: {way_out}") from error
    parts = [int(part) for part in found.split(".")[:2] if part.isdecimal()]
    if parts < [int(part) for part in least.split(".")]:
        raise UserError(f"{package} {found} is too old: {way_out}")
