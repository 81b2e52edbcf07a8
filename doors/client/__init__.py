"""What programs import that ask `penstock serve`. The names are those of `penstock.plugins.client`."""

from penstock.plugins.client import AsyncClient, AsyncStore, Changes, Client, Entry, QueryError, Store

__all__ = ["AsyncClient", "AsyncStore", "Changes", "Client", "Entry", "QueryError", "Store"]
