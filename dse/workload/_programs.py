"""Training programs: how a workload is run, by name and with the origin of every figure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from dse._text.suggest import hint
from dse.errors import UnknownNameError

if TYPE_CHECKING:
    from collections.abc import Mapping

#: The program that runs nothing but the kernels and collectives of the model: a bound that no real
#: program reaches.
IDEAL = "ideal"


@dataclass(frozen=True, slots=True)
class FittedValue:
    """A figure that was fitted.

    Attributes:
        name: Field of the program's description.
        value: As fitted, in SI units.
        on: What it was fitted on.
    """

    name: str
    value: float
    on: str


@dataclass(frozen=True, slots=True)
class Program:
    """A training program; each kind of workload adds how it is written.

    Attributes:
        name: By which a search space or the command line chooses it.
        description: One line for listings.
        origin: What was read from its sources, what was counted.
        fitted: What was fitted.
    """

    name: str
    description: str
    origin: str
    fitted: tuple[FittedValue, ...] = ()


AnyProgram = TypeVar("AnyProgram", bound=Program)


def find_program(programs: Mapping[str, AnyProgram], name: str, *, trains: str = "") -> AnyProgram:
    """Returns a program by name.

    Args:
        programs: Those of a kind of workload.
        name: The name, or one by which it was known earlier.
        trains: What the programs train, for the message; empty if it goes without saying.

    Raises:
        UnknownNameError: There is no such program; the message names those that there are.
    """
    found = programs.get(_FORMER_NAMES.get(name, name))
    if found is None:
        which = f"no program that trains a {trains}" if trains else "no program"
        raise UnknownNameError(f"{which} is called `{name}`; {hint(name, tuple(programs))}")
    return found


_FORMER_NAMES = {"default": IDEAL}

#: What stands with every figure of the ideal program.
BOUND_LABEL = "bound: no program reaches it"


def program_label(name: str) -> str:
    """Returns a program as outputs name it, with what the ideal one is."""
    return f"{name} ({BOUND_LABEL})" if name == IDEAL else name
