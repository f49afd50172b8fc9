"""The tensors among recorded inputs, one by one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dse.trace.whatif._arguments import Argument, arguments_of

if TYPE_CHECKING:
    from dse.trace import OperatorInputs


def tensors_of(inputs: OperatorInputs | None) -> tuple[Argument, ...]:
    """Returns the tensors of at least one dimension in their order; lists are taken apart.

    Args:
        inputs: Shapes and types as recorded; None if there are none.
    """
    if inputs is None:
        return ()
    return tuple(
        Argument((shape,), argument.dtype)
        for argument in arguments_of(inputs)
        for shape in argument.shapes
        if shape
    )
