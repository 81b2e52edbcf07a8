"""StateContent: the logged stores of one task at one commit, for a thread beside the task's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from penstock import Commit, StaleStoreError, StoreView


class StateContent:
    """The rows of the stores at `commit`, whatever the task does meanwhile. `views`: by store, in order."""

    def __init__(self, commit: Commit, views: Mapping[str, StoreView]) -> None:
        self.commit = commit
        self._views = views
        self._has_ended = False

    def rows(self) -> Iterator[tuple[str, bytes, bytes]]:
        """Yield store, key and value of everything.

        Raises StaleStoreError if another process has taken the stores over, and after `end`.
        """
        for store, view in self._views.items():
            if view.version != self.commit.version:
                raise StaleStoreError(f"the store is no longer at version {self.commit.version}")
            for key, value in view.range(store):
                if self._has_ended:
                    raise StaleStoreError("the task was closed meanwhile")
                yield store, key, value

    def end(self) -> None:
        """Let `rows` raise; any thread may call it."""
        self._has_ended = True

    def close(self) -> None:
        """Release the views; idempotent."""
        for view in self._views.values():
            view.close()
