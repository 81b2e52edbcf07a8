r"""A model of scikit-learn. Teaches batches: a model takes hundreds of rows at once nearly as fast as one.

Measurements of tumours come in, each a list of 30 numbers under its patient's key. `scores` gets how likely each is to
be malignant, and `alerts` each patient whose verdict has changed: that needs a store. Each record counts exactly once,
whatever batches there are.

$ penstock topics create measurements scores alerts --partitions 2
$ python examples/10_model.py | penstock produce measurements --value-serde json
$ penstock run examples/10_model.py:application
$ penstock consume scores --value-serde json
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from penstock import Application, BatchProcessor, Record, key_value_store
from penstock.dsl import StreamsBuilder

ROWS, IS_BENIGN = load_breast_cancer(return_X_y=True)
MODEL = make_pipeline(StandardScaler(), LogisticRegression()).fit(ROWS, 1 - IS_BENIGN)
"""Trained once, where the program is written, and sent to the workers with it."""


def scores(rows: Any) -> Any:
    """Return the probability of each row of an array. Its last bit may depend on the rows beside it, as in numpy."""
    return MODEL.predict_proba(rows)[:, 1]


def score(row: Sequence[float]) -> float:
    """Return the probability of one row, as a service does that is asked for one."""
    return float(scores(np.array([row]))[0])


class Verdicts(BatchProcessor):
    """Forwards a patient's verdict when it changes; the model gets all rows of a batch at once."""

    max_records = 500

    def process_batch(self, records: Sequence[Record]) -> None:
        """Score some records, and look at one after another."""
        last = self.context.get_store("verdicts")
        found = MODEL.predict(np.array([record.value for record in records]))
        for record, is_malignant in zip(records, found.tolist(), strict=True):
            verdict = "malignant" if is_malignant else "benign"
            if last.get(record.key) != verdict:
                last.put(record.key, verdict)
                self.context.forward(record.with_value(verdict))


builder = StreamsBuilder()
measurements = builder.stream("measurements", value_serde="json")
measurements.map_values_batch(scores, as_="numpy").to("scores", value_serde="json")
measurements.process(Verdicts, stores=[key_value_store("verdicts")]).to("alerts")

application = Application("model", builder)


def rows() -> Iterator[tuple[str, list[float], int]]:
    """Yield two measurements of each patient, with a time."""
    for number, row in enumerate(ROWS.tolist()):
        yield f"patient-{number // 2}", row, number


if __name__ == "__main__":
    for key, value, timestamp in rows():
        print(json.dumps({"key": key, "value": value, "timestamp": timestamp}))
