"""What the application's outputs and stores must be, in plain Python, from the inputs as they are in the topics."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from penstock.record import Headers

from .app import ANSWERS, ORDERS, PINGS, PONGS, PRODUCTS, REFUNDS, REMINDERS, REPORT_MS, TICKS, TOTALS


class Row(NamedTuple):
    """A record as a reader of the topic sees it; without a value, `value` is empty."""

    topic: str
    partition: int
    offset: int
    key: str
    value: str
    timestamp: int
    headers: Headers = ()

    @property
    def number(self) -> str:
        """The name that the application gives an input."""
        return f"{self.topic}-{self.partition}-{self.offset}"


Stores = Mapping[str, Mapping[str, Any]]
"""The content of each store, of all tasks together; keys of stores that every task writes begin with the task's id."""


@dataclass
class Verdict:
    """What is wrong: `lost` inputs without an output, `repeated` outputs, and all else in words."""

    lost: int = 0
    repeated: int = 0
    wrong: list[str] = field(default_factory=list)

    @property
    def is_good(self) -> bool:
        """Whether nothing is wrong."""
        return not (self.lost or self.repeated or self.wrong)

    def __str__(self) -> str:
        return "\n".join([f"lost {self.lost}, repeated {self.repeated}, wrong {len(self.wrong)}", *self.wrong[:20]])


class Oracle:
    """Judges outputs and stores. `exactly_once` is the guarantee; at least once outputs may repeat, and counts be too
    high.

    `again` has the inputs that a reset said it would process again, and how many times: what comes of them may repeat
    so often. After a reset numbers that count up begin again from its state.
    """

    def __init__(
        self,
        inputs: Iterable[Row],
        outputs: Iterable[Row],
        exactly_once: bool = True,
        again: Mapping[str, int] | None = None,
    ) -> None:
        self._exactly_once = exactly_once
        self._again = again or {}
        self._strict = exactly_once and again is None
        self._inputs: dict[str, list[Row]] = defaultdict(list)
        for row in inputs:
            self._inputs[row.topic].append(row)
        self._outputs: dict[str, list[Row]] = defaultdict(list)
        for row in outputs:
            self._outputs[row.topic].append(row)
        self._by_number = {row.number: row for topic in (ORDERS, REFUNDS, PINGS) for row in self._inputs[topic]}
        self._verdict = Verdict()

    def judge(self, stores: Mapping[str, Stores] | None = None) -> Verdict:
        """Return what is wrong with the outputs, and with the stores of each place: of a host, or as restored."""
        self._verdict = Verdict()
        self._judge_answers()
        self._judge_ticks()
        self._judge_totals()
        self._judge_pongs()
        self._judge_reminders()
        for place, found in (stores or {}).items():
            self._judge_stores(place, found)
        return self._verdict

    awaits_time = False
    """Whether results wait for records that move time on."""

    @property
    def awaits_rest(self) -> bool:
        """Whether results wait for a time without records."""
        return not self._due_reminders() <= {row.value for row in self._outputs[REMINDERS]}

    # ------------------------------------------------------------------ outputs

    def _judge_answers(self) -> None:
        """Each order and refund once, in its topic's order; a balance that follows the one before."""
        numbers = Counter[str]()
        balances: dict[str, int] = defaultdict(int)
        orders: dict[tuple[str, str], list[int]] = defaultdict(list)
        for row in self._outputs[ANSWERS]:
            number, token, balance = row.value.split(" ")
            cause = self._by_number.get(number)
            if cause is None or cause.key != row.key or (token == "-") != (cause.topic == REFUNDS):
                self._wrong(f"{row} answers nothing that was asked")
                continue
            numbers[number] += 1
            orders[cause.topic, row.key].append(cause.offset)
            balances[row.key] += _change(cause)
            if self._strict and balances[row.key] != int(balance):
                self._wrong(f"{row}: expected a balance of {balances[row.key]}")
                balances[row.key] = int(balance)
        self._count(numbers, [row.number for topic in (ORDERS, REFUNDS) for row in self._inputs[topic]])
        self._check_order("answers", orders)

    def _judge_ticks(self) -> None:
        """The ticks of each task count up by ones."""
        ticks: dict[str, list[int]] = defaultdict(list)
        for row in self._outputs[TICKS]:
            ticks[row.key].append(int(row.value))
        for task, counts in ticks.items():
            if self._strict and counts != list(range(1, len(counts) + 1)):
                self._wrong(f"the ticks of task {task} are not 1 to {len(counts)}: {_around(counts)}")

    def _judge_totals(self) -> None:
        """Each order once; with the tasks' own numbering, everything that a task did, in its order."""
        numbers = Counter[str]()
        work: dict[str, dict[int, list[Row]]] = defaultdict(lambda: defaultdict(list))
        last: dict[str, int] = defaultdict(int)
        versions: dict[str, set[str]] = defaultdict(lambda: {"None"})
        for row in self._inputs[PRODUCTS]:
            versions[row.key].add(row.value)
        for row in self._outputs[TOTALS]:
            task, done, number, _, _, version = row.value.split(" ")
            work[task][int(done)].append(row)
            if number == "report":
                continue
            cause = self._by_number.get(number)
            if cause is None or cause.topic != ORDERS or cause.value.split(" ")[0] != row.key:
                self._wrong(f"{row} counts nothing that was ordered")
                continue
            numbers[number] += 1
            if version not in versions[row.key]:
                self._wrong(f"{row} has a version that product {row.key} never had")
            if self._strict and int(done) <= last[row.key]:
                self._wrong(f"{row} comes after what its task did later ({last[row.key]})")
            last[row.key] = int(done)
        self._count(numbers, [row.number for row in self._inputs[ORDERS]])
        if self._strict:
            for task, steps in work.items():
                self._judge_work(task, steps)

    def _judge_work(self, task: str, steps: Mapping[int, list[Row]]) -> None:
        """Go through what one task did, one record after the other, with the reports between them."""
        sales: dict[str, list[int]] = defaultdict(lambda: [0, 0])
        versions: dict[str, int] = {}
        orders: dict[tuple[str, str], list[int]] = defaultdict(list)
        stream_time, due = -1, 0
        for done in range(1, max(steps) + 1):
            rows = [each for each in steps.get(done, []) if each.value.split(" ")[2] != "report"]
            reports = [each for each in steps.get(done, []) if each.value.split(" ")[2] == "report"]
            if len(rows) != 1:
                self._wrong(f"task {task} did its record {done} {len(rows)} times")
                continue
            _, _, number, count, total, version = rows[0].value.split(" ")
            cause = self._by_number.get(number)
            if cause is None:
                continue
            product = rows[0].key
            sales[product][0] += 1
            sales[product][1] += _change(cause)
            if sales[product] != [int(count), int(total)]:
                self._wrong(f"{rows[0]}: expected {sales[product]}")
            orders[f"{ORDERS}-{cause.partition}", ""].append(cause.offset)
            if version != "None":
                if int(version) < versions.get(product, 0):
                    self._wrong(f"{rows[0]}: the global store went back from version {versions[product]}")
                versions[product] = int(version)
            stream_time = max(stream_time, cause.timestamp)
            expected = []
            if stream_time >= due:
                expected = [f"{task} {done} report {done} {stream_time} -"]
                due = (stream_time // REPORT_MS + 1) * REPORT_MS
            if [each.value for each in reports] != expected:
                self._wrong(
                    f"task {task}, record {done}: reports {[each.value for each in reports]}, expected {expected}"
                )
        self._check_order(f"what task {task} read", orders)

    def _judge_pongs(self) -> None:
        """Two pings of three, once, in order."""
        numbers = Counter[str]()
        orders: dict[tuple[str, str], list[int]] = defaultdict(list)
        wanted = [row for row in self._inputs[PINGS] if int(row.value) % 3]
        known = {row.number: None for row in wanted}
        for row in self._outputs[PONGS]:
            if row.value not in known or self._by_number[row.value].key != row.key:
                self._wrong(f"{row} answers no ping")
                continue
            numbers[row.value] += 1
            orders[PINGS, row.key].append(self._by_number[row.value].offset)
        self._count(numbers, known)
        self._check_order("pongs", orders)

    def _judge_reminders(self) -> None:
        """Two of each order that stream time has passed, once."""
        numbers, due = Counter[str](), self._due_reminders()
        for row in self._outputs[REMINDERS]:
            cause = self._by_number.get(row.value.split(" ")[0])
            if cause is None or cause.topic != ORDERS or cause.key != row.key:
                self._wrong(f"{row} reminds of nothing that was ordered")
                continue
            numbers[row.value] += 1
        if early := sorted(numbers.keys() - due):
            self._wrong(f"reminders before their time: {', '.join(early[:5])} ...")
        self._count(numbers, due)

    def _due_reminders(self) -> set[str]:
        times: dict[int, int] = defaultdict(int)
        for row in (*self._inputs[ORDERS], *self._inputs[REFUNDS]):
            times[row.partition] = max(times[row.partition], row.timestamp)
        passed = [row.number for row in self._inputs[ORDERS] if row.timestamp < times[row.partition]]
        return {f"{number} {clock}" for number in passed for clock in ("stream", "wall")}

    # ------------------------------------------------------------------ stores

    def _judge_stores(self, place: str, stores: Stores) -> None:
        balances: dict[str, int] = defaultdict(int)
        for topic in (ORDERS, REFUNDS):
            for row in self._inputs[topic]:
                balances[row.key] += _change(row)
        tokens: dict[str, set[str]] = defaultdict(set)
        for row in self._outputs[ANSWERS]:
            number, token, _ = row.value.split(" ")
            if token != "-":
                tokens[number].add(token)
        sales: dict[str, list[int]] = defaultdict(lambda: [0, 0])
        for row in self._inputs[ORDERS]:
            product = row.value.split(" ")[0]
            sales[product] = [sales[product][0] + 1, sales[product][1] + _change(row)]
        kept = stores["tokens"]
        differing = [number for number in tokens.keys() | kept.keys() if kept.get(number) not in tokens[number]]
        if differing:
            self._wrong(
                f"{place}: {len(differing)} of {len(tokens)} tokens differ from the answers, e.g. {differing[:3]}"
            )
        self._compare(
            place, "products", stores["products"], {row.key: int(row.value) for row in self._inputs[PRODUCTS]}
        )
        found = stores["balances"]
        if self._exactly_once:
            self._compare(place, "balances", {key: each for key, each in found.items() if "/" not in key}, balances)
        if self._strict:
            done = Counter(row.value.split(" ")[0] for row in self._outputs[TOTALS] if " report " not in row.value)
            ticks = Counter(row.key for row in self._outputs[TICKS])
            counted = {key: each for key, each in found.items() if "/" in key}
            self._compare(place, "ticks", counted, {f"{task}/ticks": count for task, count in ticks.items()})
            self._compare(place, "sales", {key: list(each) for key, each in stores["sales"].items()}, sales)
            self._compare(
                place, "progress", stores["progress"], {f"{task}/done": count for task, count in done.items()}
            )
        else:
            self._check_sales(place, stores["sales"], {product: count for product, (count, _) in sales.items()})

    def _check_sales(self, place: str, found: Mapping[str, Any], ordered: Mapping[str, int]) -> None:
        """No order is missing, and none is counted more often than was said."""
        counts = {product: (found.get(product) or [0])[0] for product in ordered}
        most = Counter(ordered)
        for number, times in self._again.items():
            if (row := self._by_number.get(number)) is not None and row.topic == ORDERS:
                most[row.value.split(" ")[0]] += times
        for product, count in counts.items():
            if count < ordered[product] or (self._exactly_once and count > most[product]):
                self._wrong(
                    f"{place}: store 'sales' has {count} of {product}, expected {ordered[product]} to {most[product]}"
                )

    def _compare(self, place: str, store: str, found: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
        differing = [
            f"{key}: {found.get(key)} instead of {expected.get(key)}"
            for key in sorted(found.keys() | expected.keys())
            if found.get(key) != expected.get(key)
        ]
        if differing:
            self._wrong(
                f"{place}: store {store!r}: {len(differing)} of {len(expected)} differ: {'; '.join(differing[:3])}"
            )

    # ------------------------------------------------------------------ helpers

    def _wrong(self, what: str) -> None:
        self._verdict.wrong.append(what)

    def _count(self, numbers: Counter[str], wanted: Iterable[str]) -> None:
        lost = [number for number in wanted if number not in numbers]
        repeated = [number for number, count in numbers.items() if count > 1 + self._again.get(number.split(" ")[0], 0)]
        self._verdict.lost += len(lost)
        self._verdict.repeated += len(repeated)
        if lost:
            self._wrong(f"lost: {', '.join(lost[:5])} ...")
        if repeated and self._exactly_once:
            self._wrong(f"repeated: {', '.join(repeated[:5])} ...")

    def _check_order(self, what: str, orders: Mapping[tuple[str, str], Sequence[int]]) -> None:
        """The first time that each offset appears, they ascend."""
        for name, offsets in orders.items():
            first = list(dict.fromkeys(offsets))
            if first != sorted(first):
                self._wrong(f"{what} of {' '.join(name).strip()} are out of order: {_around(first)}")


def _change(row: Row) -> int:
    """Return what an order or refund adds."""
    return int(row.value.split(" ")[1]) if row.topic == ORDERS else -int(row.value)


def _around(numbers: Sequence[int]) -> str:
    """Show where a sequence stops ascending by ones."""
    for index in range(1, len(numbers)):
        if numbers[index] != numbers[index - 1] + 1 and numbers[index] <= numbers[index - 1]:
            return f"... {list(numbers[max(0, index - 3) : index + 3])} ..."
    for index in range(1, len(numbers)):
        if numbers[index] != numbers[index - 1] + 1:
            return f"... {list(numbers[max(0, index - 3) : index + 3])} ..."
    return f"{list(numbers[:5])} ..."
