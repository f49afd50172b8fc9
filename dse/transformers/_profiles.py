"""Training programs by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dse._suggest import hint
from dse.errors import UnknownNameError
from dse.transformers._types import COMPOSER, MEGATRON, StepSoftware

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Profiles by the names that search spaces and the command line use.
SOFTWARE_PROFILES: Mapping[str, StepSoftware] = {
    "default": StepSoftware(),
    "megatron": MEGATRON,
    "composer": COMPOSER,
}


def software_profile(name: str) -> StepSoftware:
    """Returns the training program of that name.

    Raises:
        UnknownNameError: There is none; the message names those there are.
    """
    try:
        return SOFTWARE_PROFILES[name]
    except KeyError:
        raise UnknownNameError(
            f"no training program for transformers is called `{name}`; "
            f"{hint(name, tuple(SOFTWARE_PROFILES))}"
        ) from None
