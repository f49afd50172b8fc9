from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from dse.errors import DseError

GEMM_HEADER = "m,n,k,dtype,time_us"


def gemm_csv(*rows: str, header: str = GEMM_HEADER) -> str:
    return "\n".join((header, *rows)) + "\n"


def gemm_rows(count: int) -> list[str]:
    return [f"{128 * (i + 1)},256,512,bf16,{10 + i}" for i in range(count)]


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text)
    return path


def refusal(error: type[DseError], call: Callable[[], object]) -> str:
    with pytest.raises(error) as caught:
        call()
    return str(caught.value)
