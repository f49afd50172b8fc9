"""Random execution graphs with collectives."""

from __future__ import annotations

from hypothesis import strategies as st

from dse.graph import GraphBuilder, TaskKind
from dse.simulate import SymmetricRanks, SyncScope


@st.composite
def graphs(draw, least=0, most=25):
    """Random graphs; all streams have their collectives in one order, so they cannot deadlock."""
    builder = GraphBuilder()
    streams = [builder.add_stream(i % 3, f"stream {i}") for i in range(draw(st.integers(1, 5)))]
    seconds = st.floats(0, 10)
    tasks: list[int] = []

    def waits() -> list[int]:
        return draw(st.lists(st.sampled_from(tasks), max_size=3)) if tasks else []

    for _ in range(draw(st.integers(least, most))):
        if draw(st.booleans()):
            stream = draw(st.sampled_from(streams))
            tasks.append(builder.add_task("t", TaskKind.COMPUTE, stream, draw(seconds), waits()))
        else:
            chosen = draw(st.lists(st.sampled_from(streams), min_size=1, unique=True))
            rows = [(stream, draw(seconds), waits()) for stream in chosen]
            members = [
                builder.add_task("m", TaskKind.COLLECTIVE, stream, duration, after)
                for stream, duration, after in rows
            ]
            builder.add_collective(members)
            tasks += members
    return builder.build()


@st.composite
def symmetric_ranks(draw):
    """Copies of a random graph of one rank, on up to three nodes."""
    builder = GraphBuilder()
    streams = [
        builder.add_stream(0, f"stream {stream}") for stream in range(draw(st.integers(1, 3)))
    ]
    scopes = []
    kinds = (TaskKind.COMPUTE, TaskKind.HOST, TaskKind.COPY)
    for task in range(draw(st.integers(0, 20))):
        after = draw(st.lists(st.integers(0, task - 1), max_size=3)) if task else []
        stream, seconds = draw(st.sampled_from(streams)), draw(st.floats(0, 10))
        if draw(st.booleans()):
            builder.add_task("t", draw(st.sampled_from(kinds)), stream, seconds, after)
        else:
            builder.add_collective(
                [builder.add_task("m", TaskKind.COLLECTIVE, stream, seconds, after)]
            )
            scopes.append(draw(st.sampled_from(list(SyncScope))))
    sizes = draw(st.sampled_from([(1, 1), (1, 3), (3, 1), (2, 2), (2, 3)]))
    return SymmetricRanks(builder.build(), *sizes, tuple(scopes))
