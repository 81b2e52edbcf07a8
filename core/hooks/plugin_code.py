"""Running code of a plugin, which may exit or print: neither ends the process, or gets into a command's output."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, redirect_stdout

from ..errors import PluginError

_redirecting = threading.Lock()


@contextmanager
def plugin_code() -> Iterator[None]:
    """Run code of a plugin: `sys.exit` is a PluginError, and what it prints goes to stderr.

    Stdout is the output of a command. The text is not kept for a log line: a logging handler that a module makes when
    it is imported keeps the stream that it found, and has to write to one that lasts.
    """
    # Stdout is the process's, so one thread at a time redirects it; plugins that load others are within the first one.
    first = _redirecting.acquire(blocking=False)
    try:
        with redirect_stdout(sys.stderr) if first else nullcontext():
            yield
    except SystemExit as error:
        raise PluginError(f"it called sys.exit({error.code!r}); a plugin raises errors instead") from error
    finally:
        if first:
            _redirecting.release()
