"""Random execution graphs with meetings."""

from __future__ import annotations

from hypothesis import strategies as st

from dse.graph import GraphBuilder, TaskKind


@st.composite
def graphs(draw, least=0):
    """Random graphs; meetings are added to all lanes in one order, so they cannot deadlock."""
    builder = GraphBuilder()
    lanes = [builder.add_lane(i % 3, f"lane {i}") for i in range(draw(st.integers(1, 5)))]
    seconds = st.floats(0, 10)
    tasks: list[int] = []

    def waits() -> list[int]:
        return draw(st.lists(st.sampled_from(tasks), max_size=3)) if tasks else []

    for _ in range(draw(st.integers(least, 25))):
        if draw(st.booleans()):
            lane = draw(st.sampled_from(lanes))
            tasks.append(builder.add_task("t", TaskKind.COMPUTE, lane, draw(seconds), waits()))
        else:
            chosen = draw(st.lists(st.sampled_from(lanes), min_size=1, unique=True))
            rows = [(lane, draw(seconds), waits()) for lane in chosen]
            members = [
                builder.add_task("m", TaskKind.COLLECTIVE, lane, duration, after)
                for lane, duration, after in rows
            ]
            builder.add_meeting(members)
            tasks += members
    return builder.build()
