"""A reader of pages without a browser: keeps cookies, and reads what a page says."""

from __future__ import annotations

import http.client
from html.parser import HTMLParser
from typing import Any
from urllib.parse import urlencode, urljoin, urlsplit


class Answer:
    def __init__(self, status: int, headers: Any, data: bytes) -> None:
        self.status = status
        self.headers = headers
        self.html = data.decode()
        self.page = Page(self.html)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.page.texts).split())


class Page(HTMLParser):
    """The tags of a page with their attributes, and its text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def links(self) -> list[str]:
        return [given["href"] or "" for tag, given in self.tags if tag == "a"]


class Reader:
    """Asks one server. `token`: sent as a bearer token."""

    def __init__(self, url: str, path: str = "/console/") -> None:
        self.url = url
        self.here = path
        self.cookies: dict[str, str] = {}

    def get(self, page: str = "", **headers: str) -> Answer:
        """Get a page, relative to the one before."""
        path = urljoin(self.here, page)
        answer = self.ask("GET", path, None, headers)
        if answer.status in (303, 307):
            return self.get(urljoin(path, answer.headers["location"]))
        self.here = path
        return answer

    def post(self, page: str, *, follow: bool = True, headers: dict[str, str] | None = None, **fields: str) -> Answer:
        """Send a form, as a browser does."""
        given = (
            {"origin": self.url, "content-type": "application/x-www-form-urlencoded"} if headers is None else headers
        )
        answer = self.ask("POST", urljoin(self.here, page), urlencode(fields).encode(), given)
        return self.get(answer.headers["location"]) if follow and answer.status == 303 else answer

    def ask(self, method: str, path: str, body: bytes | None, headers: dict[str, str]) -> Answer:
        connection = http.client.HTTPConnection(urlsplit(self.url).netloc, timeout=60)
        if self.cookies:
            headers = {"cookie": "; ".join(f"{name}={value}" for name, value in self.cookies.items()), **headers}
        try:
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            data = response.read()
            for each in response.headers.get_all("set-cookie") or ():
                name, _, rest = each.partition("=")
                self.cookies[name] = rest.partition(";")[0].strip('"')
            return Answer(response.status, response.headers, data)
        finally:
            connection.close()
