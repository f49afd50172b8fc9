"""Scripts on several ranks with the variables of `torchrun`, in processes that are forked.

They find torch and TorchRec imported, which takes longer than most scripts.
"""

from __future__ import annotations

import os
from pathlib import Path
import runpy
import socket
import sys

from tests.search.runs import forked

#: How long ranks may take, on a machine that does other things.
_PATIENCE_S = 240.0


def run_ranks(script: Path, *arguments: object, ranks: int = 2, **variables: object) -> list[str]:
    """Runs a script on several ranks; returns what each of them printed.

    Args:
        script: The script; what it prints is written beside it.
        arguments: Of the script.
        ranks: Number of ranks.
        variables: More of the environment.

    Raises:
        AssertionError: A rank did not end well.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": ranks}
    outputs = [script.with_name(f"{script.stem}.{rank}.txt") for rank in range(ranks)]
    words = [str(script), *map(str, arguments)]
    processes = []
    try:
        for rank, output in enumerate(outputs):
            own = environment | {"RANK": rank, "LOCAL_RANK": rank} | variables
            of_words = {name: str(value) for name, value in own.items()}
            processes.append(forked(_rank, words, of_words, str(output)))
        for process in processes:
            process.join(_PATIENCE_S)
    finally:
        for process in processes:
            process.kill()
    printed = [output.read_text() for output in outputs]
    for process, text in zip(processes, printed, strict=True):
        assert process.exitcode == 0, text[-3000:]
    return printed


def _rank(words: list[str], variables: dict[str, str], output: str) -> None:
    """What the process does."""
    os.environ.update(variables)
    with open(output, "w") as file:
        os.dup2(file.fileno(), sys.__stdout__.fileno())
        os.dup2(file.fileno(), sys.__stderr__.fileno())
    sys.argv = words
    sys.path.insert(0, str(Path(words[0]).parent))
    runpy.run_path(words[0], run_name="__main__")
