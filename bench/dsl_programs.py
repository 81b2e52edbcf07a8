"""The measured programs that are written in the DSL."""

from __future__ import annotations

from penstock.plugins.dsl import StreamsBuilder, sessions, tumbling, within

from .programs import GAP_MS, RETENTION_MS, WINDOW_MS

JOIN = within("12s", grace="10s")


def dsl_program(program: str, source: str, target: str, other: str) -> StreamsBuilder:
    """Return one of the programs over its topics."""
    builder = StreamsBuilder()
    stream = builder.stream(source)
    match program:
        case "dsl-word-count":
            words = stream.flat_map_values(lambda line: line.split(" ")).group_by(lambda word: word, name="words")
            made = words.count("counts").to_stream().map_values(str)
        case "dsl-windowed-count":
            windows = tumbling(f"{WINDOW_MS}ms", grace=f"{RETENTION_MS - WINDOW_MS}ms")
            counts = stream.group_by_key().windowed_by(windows).count("counts").to_stream()
            made = counts.map(lambda key, value: (key.key, str(value)), with_key=True)
        case "dsl-session-count":
            gaps = sessions(f"{GAP_MS}ms", grace=f"{RETENTION_MS - GAP_MS}ms")
            counts = stream.group_by_key().windowed_by(gaps).count("counts").to_stream()
            updates = counts.filter(lambda count: count is not None)
            made = updates.map(lambda key, value: (key.key, str(value)), with_key=True)
        case "stream-table-join":
            users = builder.table(other, "users")
            made = stream.left_join(users, lambda event, user: f"{user} {len(event)}")
        case "stream-stream-join":
            made = stream.join(builder.stream(other), lambda one, two: f"{one} {two}", JOIN, name="joined")
        case _:
            raise ValueError(f"unknown program {program!r}")
    made.to(target, value_serde="str")
    return builder
