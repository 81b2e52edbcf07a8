"""Whereabouts: which node's code a thread runs, for messages about a thread that does not come back."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

from penstock.processor import Processor, ValueTransformer


def whereabouts(thread: threading.Thread) -> str:
    """Return the node whose processor a thread runs, if it runs one, and its line of code; "" if it runs nothing."""
    frame = sys._current_frames().get(thread.ident or 0)
    if frame is None:
        return ""
    code = frame.f_code
    line = f"in {code.co_qualname} ({Path(code.co_filename).name}, line {frame.f_lineno})"
    while frame is not None:
        runs = frame.f_locals.get("self")
        if isinstance(runs, (Processor, ValueTransformer)):
            node = getattr(getattr(runs, "context", None), "node", None)
            return f"node {node!r}, {line}" if node is not None else line
        frame = frame.f_back
    return line
