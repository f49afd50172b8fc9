"""YAML of the figures in which one platform differs from another."""

from __future__ import annotations

from functools import cache
import inspect
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_args

from pydantic import create_model

from dse.config import StrictModel
from dse.machine.platforms._hardware_schema import SourcedBlock

Block = TypeVar("Block", bound=StrictModel)

if TYPE_CHECKING:
    Own = Annotated[Block, "in part"]
else:

    class Own:
        """`Own[LinkBlock]` has the keys of a `LinkBlock`, of which any may be given.

        Origin and source are not among them: the file that gives the figures is the source.
        """

        @staticmethod
        @cache
        def __class_getitem__(block: type[StrictModel]) -> type[StrictModel]:
            """Returns the class of the block."""
            sourced = SourcedBlock.model_fields if issubclass(block, SourcedBlock) else {}
            fields: dict[str, Any] = {}
            for name, field in block.model_fields.items():
                inner = _block_in(field.annotation)
                figure = Own[inner] if inner else field.rebuild_annotation()
                fields |= {} if name in sourced else {name: (figure | None, None)}
            # `python -OO` has no docstrings.
            summary = (inspect.getdoc(block) or "").partition("\n")[0]
            text = f"{summary} Only what differs is given."
            own = create_model(
                f"Own{block.__name__}", __base__=StrictModel, __doc__=text, **fields
            )
            own.described_by = block
            return own


def _block_in(annotation: Any) -> type[StrictModel] | None:
    """Returns the block that a field is, or may be."""
    for kind in (annotation, *get_args(annotation)):
        if isinstance(kind, type) and issubclass(kind, StrictModel):
            return kind
    return None
