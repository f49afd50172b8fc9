"""What a prediction costs on very many ranks.

Usage: python benchmarks/worlds.py [--ranks N,N,…] [--write docs/performance.md]

Runs `dse predict` and `dse shard` as commands, the start of Python included, and prints the
processor time and the largest memory of each. Every rank has 1,024 samples, so batches grow with
the ranks; a transformer has 8 × 16 ranks a replica.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from costs import command_cost
from pages import replace_section, table, text

RANKS = (1024, 4096, 16384, 65536)

TITLE = "## Very many ranks\n"

_HEAD = """
`python benchmarks/worlds.py --write docs/performance.md` runs these commands and writes this
section: the processor time and peak memory of each, including the start of Python.

"""

_NOTES = """
Nodes that are like others, and ranks of a node that are, are simulated and explained only once.
Above 200,000 tables × ranks (7,692 ranks here), constructed plans are only compared, not improved
table by table, so more ranks can take less time. The bound of `dse shard` looks only at nodes that
differ.
"""

COMMANDS = {
    "`predict dlrm_dcnv2`": ("predict", "dlrm_dcnv2"),
    "`shard dlrm_dcnv2`": ("shard", "dlrm_dcnv2"),
    "`predict llama31_405b`": ("predict", "llama31_405b", "--tensor=8", "--pipeline=16"),
}


def measured(arguments: tuple[str, ...], ranks: int) -> tuple[float, int]:
    """Returns processor time in seconds and largest memory in bytes of a command."""
    batch = ranks * 1024 if "dlrm" in arguments[1] else ranks
    options = ("--platform=h100_sxm", f"--world-size={ranks}", f"--global-batch-size={batch}")
    # 1 is a plan that does not fit: a prediction all the same.
    return command_cost(*arguments, *options, codes=(0, 1))


def section(ranks: list[int]) -> str:
    """Returns the section of the page, with its title."""
    rows = []
    for count in ranks:
        cells = []
        for arguments in COMMANDS.values():
            seconds, memory_bytes = measured(arguments, count)
            cells.append(f"{seconds:.1f} s, {memory_bytes / 2**30:.2f} GiB")
        print(count, *cells, sep="  ", flush=True)
        rows.append((f"{count:,}", *cells))
    return "".join(("\n", TITLE, _HEAD, text(table(("ranks", *COMMANDS), "r", rows)), _NOTES))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", default=",".join(map(str, RANKS)))
    parser.add_argument("--write", type=Path, metavar="PAGE")
    arguments = parser.parse_args()
    text = section([int(count) for count in arguments.ranks.split(",")])
    if arguments.write:
        replace_section(arguments.write, text)


if __name__ == "__main__":
    main()
