"""StoreViews: stores and their entries, through the answers of the query API, with its rights and its limits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock import PenstockError
from penstock.plugins.serdes.json_text import dump_json
from penstock.plugins.state.queries.http.answers import Answers
from penstock.plugins.state.queries.http.guard import Refused, refusal
from penstock.plugins.state.queries.http.parameters import Parameters
from penstock.support.printable import printable

from .views import Context, Given, link

_FIELDS = ("key", "prefix", "start", "end", "from", "to", "json_keys", "all_tasks", "stale_ok", "page")
_ENTRIES = 50
_LONGEST_VALUE = 2_000
_WITHOUT_TIMES = ("key_value", "lru_map", "list")


class StoreViews:
    """Makes the pages of stores."""

    def __init__(self, answers: Answers) -> None:
        self._answers = answers

    def names(self) -> list[str]:
        """Return the stores that can be asked."""
        return [each["name"] for each in self._answers.stores()["stores"]]

    def stores(self) -> Context:
        """Return the stores that can be asked, with links to them."""
        found = self._answers.stores()["stores"]
        return {
            "stores": [
                {**each, "link": link("store", name=each["name"]), "copies": link("copies", name=each["name"])}
                for each in found
            ]
        }

    def store(self, given: Given) -> Context:
        """Return a page of entries of a store. Raises Refused for a store that is not there."""
        name = given.get("name", "")
        kind = self._kind(name)
        # A browser sends the fields that were left empty, too.
        asked = {field: given[field] for field in _FIELDS if given.get(field)}
        context: Context = {
            "title": name,
            "name": name,
            "given": {field: asked.get(field, "") for field in _FIELDS},
            "has_times": kind not in _WITHOUT_TIMES,
            "refused": None,
        }
        try:
            parameters = Parameters({**asked, "limit": str(_ENTRIES), "timestamps": "true"}.items(), _KNOWN)
            page = self._answers.page(name, parameters)
        except (Refused, PenstockError) as error:
            return {**context, **_refused(error)}
        titles = list(dict.fromkeys(field for entry in page["entries"] for field in entry)) or ["key", "value"]
        links = [("First", link("store", name=name, **{**asked, "page": ""}))] if "page" in asked else []
        if page["page"] is not None:
            links.append(("Next", link("store", name=name, **{**asked, "page": page["page"]})))
        rows = [[shown(entry.get(title)) for title in titles] for entry in page["entries"]]
        return {**context, "titles": titles, "rows": rows, "links": links}

    def copies(self, given: Given) -> Context:
        """Return the copies of a store that answer here. Raises Refused for a store that is not there."""
        name = given.get("name", "")
        self._kind(name)
        context = {"title": f"Copies of {name}", "refused": None}
        try:
            tasks = self._answers.store(name)["tasks"]
        except (Refused, PenstockError) as error:
            return {**context, **_refused(error)}
        rows = [
            (each["task"], "-" if each["version"] is None else each["version"], f"{each['behind']:,}") for each in tasks
        ]
        return {**context, "copies": rows}

    def _kind(self, name: str) -> str:
        for each in self._answers.stores()["stores"]:
            if each["name"] == name:
                return str(each["kind"])
        raise Refused(404, "unknown_store", "There is no store of this name that can be asked here.")


_KNOWN: Mapping[str, None] = dict.fromkeys((*_FIELDS, "limit", "timestamps"))


def _refused(error: Refused | PenstockError) -> Context:
    found = error if isinstance(error, Refused) else refusal(error)
    # That a store cannot answer now is no fault of the page.
    return {"refused": found.message, "status": 200 if found.status >= 500 else found.status}


def shown(value: Any) -> str:
    """Return a value as text: JSON for other values than text, and only the beginning of a long one.

    Control characters are escaped: a page would leave them out, or show others.
    """
    if value is None:
        return ""
    text = value if isinstance(value, str) else dump_json(value).decode("utf-8", "replace")
    if len(text) > _LONGEST_VALUE:
        return f"{printable(text[:_LONGEST_VALUE])}… ({len(text):,} characters)"
    return printable(text)
