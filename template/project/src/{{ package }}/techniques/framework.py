"""What a `train.py` around a framework checks at its start."""

from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version

from ..config import Config
from ..config_base import Section
from ..errors import UserError


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


def refuse(cfg: Config, cannot: Mapping[str, str]) -> None:
    """Refuse what a framework cannot express: by `section.key` any value but the default, by `section.key=value` that.

    Raises:
        UserError: says what to use instead.
    """
    for what, why in cannot.items():
        key, _, refused = what.partition("=")
        name, _, field = key.partition(".")
        section: Section = getattr(cfg, name)
        value = getattr(section, field)
        if (str(value) == refused) if refused else (value != getattr(type(section), field)):
            section.refuse(field, why)
