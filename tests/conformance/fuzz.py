"""`python -m tests.conformance.fuzz --seed 1`: generated programs, in Kafka Streams and in penstock; exit 1 if names or
answers differ otherwise than docs/conformance.md lists. It needs a JDK."""

from __future__ import annotations

import argparse
import logging
import random
import sys
from collections import Counter
from typing import Any

from .comparing import compared
from .runner import Case

Step = dict[str, Any]

WINDOWS: list[Step] = [
    {"kind": "tumbling", "size": 10, "grace": 5},
    {"kind": "hopping", "size": 10, "advance": 5, "grace": 3},
    {"kind": "sliding", "diff": 5, "grace": 4},
    {"kind": "session", "gap": 5, "grace": 3},
    {"kind": "session", "gap": 1, "grace": 1},
]
ON_STREAMS = (
    "filter", "map_values", "select_key", "select_key", "map", "process", "process_values", "merge", "repartition",
    "to_table", "aggregate", "aggregate", "windowed", "cogroup", "join", "self_join",
)  # fmt: skip
GLOBAL_JOINS = ("global_join",) * 3
ON_TABLES = ("to_stream", "group_table", "filter_table", "map_table", "stream_table_join", "table_join", "foreign_key")


class Generator:
    """Makes one random program. `_kinds` says of each step's result whether it is a stream, a table, a
    global table, or nothing of these. `with_global`: some programs have a global table."""

    def __init__(self, rng: random.Random, *, with_global: bool = False) -> None:
        self._rng, self._with_global = rng, with_global
        self._kinds: list[str] = []
        self._stores = 0
        self.steps: list[Step] = []

    def generate(self, verbs: int) -> list[Step]:
        """Return a program with about so many verbs, in which every stream and table reaches a sink."""
        rng = self._rng
        self._add("stream", op="stream", topic="in")
        if rng.random() < 0.6:
            self._add("stream", op="stream", topic="in2")
        for topic in ("t1", "t2"):
            if rng.random() < 0.5:
                self._add("table", op="table", topic=topic, **self._store())
        has_global = self._with_global and rng.random() < 0.4
        if has_global:
            self._add("global", op="global_table", topic="g", store="rows")
        for _ in range(verbs):
            on_tables = ON_TABLES if "table" in self._kinds else ()
            self._verb(rng.choice(ON_STREAMS + on_tables + (GLOBAL_JOINS if has_global else ())))
        used = {each for step in self.steps for each in _parents(step)}
        for number, kind in enumerate(list(self._kinds)):
            if kind in ("stream", "table") and number not in used:
                last = self._add("stream", op="to_stream", of=number) if kind == "table" else number
                self._add("none", op="to", of=last, topic=f"out-{number}")
        return self.steps

    def _add(self, kind: str, **step: Any) -> int:
        self.steps.append(step)
        self._kinds.append(kind)
        return len(self.steps) - 1

    def _any(self, kind: str) -> int:
        return self._rng.choice([number for number, each in enumerate(self._kinds) if each == kind])

    def _store(self, share: float = 0.5) -> Step:
        self._stores += 1
        return {"store": f"s{self._stores}"} if self._rng.random() < share else {}

    def _verb(self, verb: str) -> None:
        rng, stream, number = self._rng, self._any("stream"), len(self.steps)
        select = rng.choice(["first_char", "key_first_char", "value"])
        match verb:
            case "filter":
                self._add("stream", op=verb, of=stream, pred=rng.choice(["true", "has_value", "value_len_gt:1"]))
            case "map_values":
                self._add("stream", op=verb, of=stream, fn=rng.choice(["upper", "tag", "to_string"]))
            case "select_key":
                self._add("stream", op=verb, of=stream, sel=rng.choice([select, "const:c"]))
            case "map" | "process" | "process_values":
                self._add("stream", op=verb, of=stream)
            case "merge":
                other = self._any("stream")
                if other != stream:
                    self._add("stream", op=verb, of=[stream, other])
            case "repartition":
                name = {} if rng.random() < 0.5 else {"name": f"r{number}"}
                self._add("stream", op=verb, of=stream, **name)
            case "to_table":
                self._add("table", op=verb, of=stream, **self._store())
            case "aggregate" | "windowed":
                self._aggregate(stream, windowed=verb == "windowed")
            case "cogroup":
                self._cogroup(stream)
            case "join" | "self_join":
                other = stream if verb == "self_join" else self._any("stream")
                kind = "inner" if other == stream else rng.choice(["inner", "left", "outer"])
                self._add("stream", op="join", of=[stream, other], type=kind, diff=rng.choice([0, 5]), grace=4)
            case "global_join":
                step: Step = {"type": rng.choice(["inner", "left"]), "both_keys": rng.random() < 0.7}
                self._add("stream", op="join", of=[stream, self._any("global")], select=select, **step)
            case _:
                self._of_table(verb, stream, self._any("table"), select)

    def _aggregate(self, stream: int, *, windowed: bool) -> None:
        rng = self._rng
        step: Step = {"group": rng.choice(["key", "first_char"]), "agg": rng.choice(["count", "reduce", "aggregate"])}
        step |= self._store()
        if rng.random() < 0.3:
            step["name"] = f"g{len(self.steps)}"
        if not windowed:
            self._add("table", op="aggregate", of=stream, **step)
            return
        made = self._add("none", op="aggregate", of=stream, window=rng.choice(WINDOWS), **step)
        if rng.random() < 0.25:
            made = self._add("none", op="suppress", of=made, until="window_closes")
        self._add("stream", op="unwindow", of=made)

    def _cogroup(self, stream: int) -> None:
        streams = [stream, self._any("stream")][: self._rng.choice([1, 2, 2])]
        step: Step = {"op": "cogroup", "of": streams, "groups": ["key", "first_char"][: len(streams)]}
        step |= {"name": f"c{len(self.steps)}", **self._store()}
        if self._rng.random() < 0.5:
            self._add("table", **step)
        else:
            self._add("stream", op="unwindow", of=self._add("none", **step, window=self._rng.choice(WINDOWS)))

    def _of_table(self, verb: str, stream: int, table: int, select: str) -> None:
        kinds = ["inner", "left", "outer"]
        match verb:
            case "to_stream":
                self._add("stream", op=verb, of=table)
            case "group_table":
                self._add("table", op=verb, of=table, group=select, **self._store())
            case "filter_table":
                self._add("table", op="filter", of=table, pred="value_len_gt:1", **self._store())
            case "map_table":
                self._add("table", op="map_values", of=table, fn="tag", **self._store())
            case "stream_table_join":
                self._add("stream", op="join", of=[stream, table], type=self._rng.choice(kinds[:2]))
            case "table_join":
                other = self._any("table")
                self._add("table", op="join", of=[table, other], type=self._rng.choice(kinds), **self._store(0.3))
            case "foreign_key":
                other = self._any("table")
                self._add("table", op="join", of=[table, other], type=self._rng.choice(kinds[:2]), fk="first_char")


_SOURCES = ("stream", "table", "global_table")


def _parents(step: Step) -> list[int]:
    of: Any = step.get("of", [])
    return of if isinstance(of, list) else [of]


def generated_case(
    name: str, rng: random.Random, *, verbs: int, inputs: int, optimize: bool, with_global: bool = False
) -> Case:
    """Return a case with a random program and inputs, without what is expected."""
    steps = Generator(rng, with_global=with_global).generate(rng.randint(2, verbs))
    case: Case = {"name": name, "family": "steps", "topology": "steps", "params": {"steps": steps}}
    case["config"] = {"optimize": optimize, "cache_max_bytes": 0}
    topics, time, ops = [step["topic"] for step in steps if step["op"] in _SOURCES], 0, []
    for number in range(inputs):
        time = max(0, time + rng.choice([0, 1, 1, 2, 3, -2, -4, 7]))
        value = rng.choice([None, "x", "ab", f"v{number}", f"v{number}"])
        key = rng.choice([*"abcabcabc", None])
        ops.append({"op": "pipe", "topic": rng.choice(topics), "key": key, "value": value, "ts": time})
    return case | ({"inputs": ops} if ops else {})


def main(arguments: list[str] | None = None) -> int:
    """Generate programs, and compare what Kafka Streams makes of them with what penstock does."""
    parser = argparse.ArgumentParser("python -m tests.conformance.fuzz", description=main.__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--programs", type=int, default=300, help="how many; each is built plain and optimised (300)")
    parser.add_argument("--verbs", type=int, default=8, help="the most verbs of a program (8)")
    parser.add_argument("--inputs", type=int, default=0, help="how many records each gets; 0: only names are compared")
    given = parser.parse_args(arguments)
    cases = [
        generated_case(
            f"steps/{given.seed}-{number}-{'optimised' if optimize else 'plain'}",
            random.Random(f"{given.seed} {number}"),
            verbs=given.verbs,
            inputs=given.inputs,
            optimize=optimize,
            with_global=True,
        )
        for number in range(given.programs)
        for optimize in (False, True)
    ]
    found = compared(cases)
    others = [each for each in found if not each.listed]
    for each in others:
        print(f"{each.name}: {each.difference}")
    for reason, count in Counter(reason for each in found for reason in each.listed).items():
        print(f"{count} as listed: {reason}")
    verbs = Counter(step["op"] for case in cases for step in case["params"]["steps"])
    print(f"{len(cases)} cases, {len(others)} differ, {len(found) - len(others)} as listed; verbs: {dict(verbs)}")
    return 1 if others else 0


if __name__ == "__main__":
    logging.getLogger("penstock").setLevel(logging.CRITICAL)
    sys.exit(main())
