"""The client of a server of queries, such as `penstock serve`; may import core. It needs no library."""

from .client import AsyncClient, AsyncStore, Changes, Client, Entry, QueryError, Store

__all__ = ["AsyncClient", "AsyncStore", "Changes", "Client", "Entry", "QueryError", "Store"]
