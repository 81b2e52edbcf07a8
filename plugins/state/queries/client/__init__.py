"""The client of a server of queries, such as `penstock serve`; may import core. It needs no library."""

from .changes import Changes
from .client import AsyncClient, AsyncStore, Client, Store
from .entries import Entry, QueryError

__all__ = ["AsyncClient", "AsyncStore", "Changes", "Client", "Entry", "QueryError", "Store"]
