"""The console: what an application does, on pages for a browser and in a terminal."""

from __future__ import annotations

from typing import Any

from penstock import Application
from penstock.plugins.engine.run.companion import Companion
from penstock.plugins.state.queries.settings import QUERIES_CONSOLE


class ConsolePages(Companion):
    """The pages of the console, at the server of queries, if the setting `queries_console` wants them."""

    @classmethod
    def pages(cls, application: Application) -> Any:
        if not QUERIES_CONSOLE.of(application.settings):
            return None
        from .pages import pages  # with modules that few runs need

        return pages
