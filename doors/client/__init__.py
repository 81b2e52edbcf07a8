"""What programs import that ask `penstock serve`. The names are those of `penstock.plugins.state.queries.client`."""

from penstock.plugins.state.queries.client import AsyncClient, AsyncStore, Changes, Client, Entry, QueryError, Store

__all__ = ["AsyncClient", "AsyncStore", "Changes", "Client", "Entry", "QueryError", "Store"]
