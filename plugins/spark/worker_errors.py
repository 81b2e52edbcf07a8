"""Errors of the functions that Spark's Python workers call: the message before the traceback."""

from __future__ import annotations

import os
import traceback
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def message_first() -> Iterator[None]:
    """Let PySpark report an error in the block by its message, with the tracebacks behind it.

    PySpark puts the worker's traceback before the message otherwise. This process ends after the report.
    """
    try:
        yield
    except Exception as error:
        if not getattr(error, "__notes__", None):  # a task host has added its own
            error.add_note(traceback.format_exc())
        os.environ["SPARK_HIDE_TRACEBACK"] = "1"
        raise
