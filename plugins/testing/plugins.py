"""own_plugins: gives a test a manager of plugins of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from penstock.hooks import PluginManager, plugins_in_use, read_plugins
from penstock.support.packages import DISTRIBUTION


@contextmanager
def own_plugins(*plugins: object) -> Iterator[PluginManager]:
    """Look up penstock's plugins and `plugins`, and no other package's, until the end of the block.

    Each of `plugins` is registered as by `PluginManager.register`, which also says what it raises, without a name. It
    holds for all threads of the process; processes that are started get `plugins` with an application.
    """
    found = read_plugins(only=DISTRIBUTION)
    for each in plugins:
        found.manager.register(each)
    with plugins_in_use(found):
        yield found.manager
