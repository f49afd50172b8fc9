"""What collectives should reach: one, or a table over sizes and ranks."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from dse._text.suggest import hint
from dse.errors import ConfigError, UnknownNameError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from dse.api._inputs import AnyPlatform
    from dse.machine.collectives import CollectiveTable, ExpectedCollective
    from dse.machine.platforms import Platform

#: Message sizes and ranks of a table that does not say its own, in bytes; ranks are those of them
#: that fill nodes of the platform.
TABLE_SIZES_BYTES = tuple(float(2**power) for power in range(10, 34, 2))
TABLE_WORLD_SIZES = (2, 4, 8, 16, 32, 64, 128, 256)


def collective(
    op: str,
    platform: AnyPlatform,
    *,
    size: float | str,
    world_size: int,
    link: str = "",
    network: str = "",
) -> ExpectedCollective:
    """Returns the expected time and bandwidths of one collective.

    Args:
        op: ``all_reduce``, ``all_gather``, ``reduce_scatter``, ``all_to_all``, ``broadcast`` or
            ``send_recv``, also as nccl-tests spells them.
        platform: Built-in name, path of a platform file, a platform, or a mapping that derives
            one from another.
        size: Message as nccl-tests counts it, in bytes or with a unit: ``"64 MiB"``.
        world_size: Number of ranks.
        link: Interconnect inside a node; the platform's default if empty.
        network: Network between nodes; the platform's default if empty.

    Raises:
        UnknownNameError: A name does not exist.
        ConfigError: The ranks leave a node partly empty, or a value is impossible.

    Example:
        >>> collective("all_reduce", "h100_sxm", size="1 GiB", world_size=16).decided_by
        'inside'
    """
    table = collective_table(
        op, platform, sizes=(size,), world_sizes=(world_size,), link=link, network=network
    )
    return table.points[0]


def collective_table(
    op: str,
    platform: AnyPlatform,
    *,
    sizes: Sequence[float | str] = TABLE_SIZES_BYTES,
    world_sizes: Sequence[int] = (),
    link: str = "",
    network: str = "",
) -> CollectiveTable:
    """Returns expected times and bandwidths over message sizes and numbers of ranks.

    Args:
        op: As :func:`collective` takes it.
        platform: As :func:`collective` takes it.
        sizes: Messages, in bytes or with a unit.
        world_sizes: Numbers of ranks; by default powers of two up to 256 that fill nodes.
        link: Interconnect inside a node; the platform's default if empty.
        network: Network between nodes; the platform's default if empty.

    Raises:
        UnknownNameError: A name does not exist.
        ConfigError: Ranks leave a node partly empty, or a value is impossible.
    """
    from dse.machine.collectives import CollectiveTable, expected_collective
    from dse.machine.platforms import load_platform

    machine = load_platform(platform)
    operation, messages = _operation(op), [_size_bytes(size) for size in sizes]
    for ranks in world_sizes:
        if ranks < 2:
            raise ConfigError(f"world size {ranks}: a collective has at least 2 ranks")
    counts = tuple(world_sizes) or tuple(_filled(machine))
    clusters = [machine.cluster(ranks, link=link, network=network) for ranks in counts]
    return CollectiveTable(
        op=operation,
        platform=machine.name,
        link=clusters[0].link.name,
        network=clusters[0].network.name,
        points=tuple(
            expected_collective(cluster, operation, size)
            for size in messages
            for cluster in clusters
        ),
    )


def _filled(platform: Platform) -> Iterator[int]:
    """Yields the usual numbers of ranks that fill nodes, or those of one node."""
    for ranks in TABLE_WORLD_SIZES:
        try:
            platform.cluster(ranks)
        except ConfigError:
            continue
        yield ranks


def _operation(text: str) -> str:
    from dse.calibration.measurements import COLLECTIVE_OPS, collective_of

    name = collective_of(text)
    if name is None:
        raise UnknownNameError(f"unknown collective `{text}`; {hint(text, COLLECTIVE_OPS)}")
    return name


def _size_bytes(size: float | str) -> float:
    from dse.config import UnitKind, parse_quantity

    try:
        value = parse_quantity(size, UnitKind.SIZE) if isinstance(size, str) else float(size)
    except ValueError as error:
        raise ConfigError(f"size: {error}") from error
    if not 0 < value < math.inf:
        raise ConfigError(f"size {size}: expected a finite size of at least 1 byte")
    return value
