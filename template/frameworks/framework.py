"""Checks at the start of a `train.py` that uses a framework."""

from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version

from .config import Config
from .config_base import Section
from .errors import UserError


def require(package: str, minimum: str) -> None:
    """Check that a package is installed.

    Raises:
        UserError: it is not, or is older than version `minimum`, such as "2.6".
    """
    command = f"pip install '{package}>={minimum}'"
    try:
        found = version(package)
    except PackageNotFoundError as error:
        raise UserError(f"{package} is not installed: {command}") from error
    parts = [int(part) for part in found.split(".")[:2] if part.isdecimal()]
    if parts < [int(part) for part in minimum.split(".")]:
        raise UserError(f"{package} {found} is too old: {command}")


def refuse(cfg: Config, unsupported: Mapping[str, str]) -> None:
    """Refuse options that a framework does not support: `section.key` for any value but its default.

    Raises:
        UserError: says what to use instead.
    """
    for option, why in unsupported.items():
        key, _, refused = option.partition("=")
        name, _, field = key.partition(".")
        section: Section = getattr(cfg, name)
        value = getattr(section, field)
        if (str(value) == refused) if refused else (value != getattr(type(section), field)):
            section.refuse(field, why)
