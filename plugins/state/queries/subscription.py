"""Subscription: the changes that one reader waits for, its position, and how it ends."""

from __future__ import annotations

import json
import re
import threading
import zlib
from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as Base64Error
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from penstock import Commit, ConfigError, PenstockError, StoreUnavailableError
from penstock.plugins.state.copies.contents import Entry

MOST_WAITING_BYTES = 4 << 20
"""How much waits for a reader before its last portion: keys and values as bytes, and some more for each."""
_MOST_TOKEN_BYTES = 1 << 20
_VERSION = re.compile("[0-9]{1,18}(-[!-9;-~]{0,200})?")
"""The form of a version's name: a counter, and what makes it unique, without the colon of a copy on its way."""

_WITHIN_FIRST = "0-within-the-first"
"""Stands for the version of a reader that has some parts of what was before its first version: no chain contains it.

What it has may be deleted since, and a later snapshot does not say so: it cannot begin with the first part again.
"""

Position = dict[str, str | None]
"""The version of each task up to which a reader has all changes; None: before the first one."""


class ChangesEndedError(StoreUnavailableError):
    """No more changes come. `code`: "slow": the reader did not keep up; "gap": what it lacks is not in the changelog.

    After "slow" it can continue at its position. After "gap" it has to follow the changes from now on, and then read
    the store again: the changelog was cleaned, or the application was reset or has another program.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True)
class Keys:
    """The keys whose changes are wanted, as bytes: from `start` to `end`, both included, that begin with `prefix`.

    `key_of` takes the key of an entry from that of a row; None for a row that is no entry.
    """

    key_of: Callable[[bytes], bytes | None]
    start: bytes | None = None
    end: bytes | None = None
    prefix: bytes = b""

    def has_row(self, row_key: bytes) -> bool:
        """Return whether a row is of one of the keys."""
        key = self.key_of(row_key)
        return (
            key is not None
            and (self.start is None or key >= self.start)
            and (self.end is None or key <= self.end)
            and key.startswith(self.prefix)
        )


@dataclass
class Portion:
    """Changed entries of one task, and its version after them; None: the version has more of them."""

    task: str
    version: str | None
    entries: Sequence[Entry]
    size: int


@dataclass(frozen=True)
class Beginning:
    """A task's last commit when a reader came, at a time (seconds); None: the task had made none."""

    commit: Commit | None
    at: float

    @property
    def version(self) -> str | None:
        """The version of the commit."""
        return None if self.commit is None else self.commit.version


class Subscription:
    """The changes that one reader has not taken yet, up to a limit; one thread takes them.

    `notify` is called by another thread when there is something to take.
    """

    def __init__(
        self, store: str, keys: Keys, tasks: Collection[str], after: Position, notify: Callable[[], None]
    ) -> None:
        self.store = store
        self.keys = keys
        self._position: Position = dict(after)
        self.read_to: dict[str, str | None] = dict(after)
        """What has been read from the changelog; a task that is missing begins with its next commit."""
        self.beginnings: dict[str, Beginning] = {}
        """By task: where it begins, if that is known."""
        self.tasks = frozenset(tasks)
        self._notify = notify
        self._waiting: deque[Portion] = deque()
        self._size = 0
        self._lock = threading.Lock()
        self._end: PenstockError | None = None

    def put(self, portion: Portion) -> None:
        """Add changes; end it if too many wait, behind those: else the next reader might never get beyond them."""
        with self._lock:
            if self._end is not None:
                return
            if portion.entries and not self.has_room:
                self._end = ChangesEndedError(
                    "slow", f"more than {MOST_WAITING_BYTES:,} bytes of changes wait for the reader: take them faster"
                )
            elif not portion.entries and not self._waiting:
                self._advance(portion)
            elif not portion.entries and self._waiting[-1].task == portion.task and not self._waiting[-1].entries:
                self._waiting[-1] = portion
            else:
                self._waiting.append(portion)
                self._size += portion.size
        if portion.entries or self._end is not None:
            self._notify()

    @property
    def has_room(self) -> bool:
        """Whether so little waits that the next portion is added, however large it is."""
        return self._size <= MOST_WAITING_BYTES

    def end(self, error: PenstockError) -> None:
        """Let the reader have what waits, and then this error."""
        with self._lock:
            self._end = self._end or error
        self._notify()

    @property
    def has_ended(self) -> bool:
        """Whether nothing more is added."""
        return self._end is not None

    @property
    def has_begun(self) -> bool:
        """Whether the place in every task is known from which on it has the changes."""
        return self.read_to.keys() >= self.tasks

    def has_begun_after(self, clear: Callable[[], None]) -> bool:
        """Return whether it has begun; if not, `clear` was called, and `notify` wakes whoever waits from then on.

        Changes of one task wake it, too, while others have not begun. Raises the error that ended it.
        """
        if self.has_begun:
            return True
        clear()
        if self.has_begun:
            return True
        while self.has_ended:
            self.take()  # what waits, then it raises what has ended it
        return False

    def position(self) -> Position:
        """Return the place behind what has been taken."""
        with self._lock:
            return dict(self._position)

    def take(self) -> Sequence[Entry]:
        """Return changes of one task, and be at the position behind them; none: nothing waits now.

        Raises the error that ended it, such as ChangesEndedError.
        """
        with self._lock:
            while self._waiting:
                portion = self._waiting.popleft()
                self._size -= portion.size
                self._advance(portion)
                if portion.entries:
                    return portion.entries
            if self._end is not None:
                raise self._end
            return ()

    def needs(self, task: str) -> str | None:
        """Return the version behind which its next changes of a task are."""
        return self.read_to[task] if task in self.read_to else self.beginnings[task].version

    def _advance(self, portion: Portion) -> None:
        if portion.version is not None:
            self._position[portion.task] = portion.version
        elif portion.entries and self._position[portion.task] is None:
            self._position[portion.task] = _WITHIN_FIRST

    def begin(self, task: str, version: str | None) -> None:
        """Set from which version on it has the changes of a task."""
        with self._lock:
            self._position[task] = version
        self.read_to[task] = version
        if self.has_begun:
            self._notify()


def token_of(position: Mapping[str, str | None]) -> str:
    """Return a position as text that a reader gives back."""
    text = json.dumps(position, separators=(",", ":"), sort_keys=True)
    return urlsafe_b64encode(zlib.compress(text.encode())).decode()


def position_of(token: str) -> Position:
    """Return the position of a token. Raises ConfigError for text that is none."""
    try:
        unpacker = zlib.decompressobj()
        found = json.loads(unpacker.decompress(urlsafe_b64decode(token.encode("ascii")), _MOST_TOKEN_BYTES))
        if not isinstance(found, dict) or not all(each is None or _VERSION.fullmatch(each) for each in found.values()):
            raise ValueError
        return {str(task): version for task, version in found.items()}
    except (ValueError, TypeError, Base64Error, zlib.error, RecursionError):
        raise ConfigError("the position of changes: expected the id of the event before") from None


def gap_error(reason: str) -> ChangesEndedError:
    """Return the error of a reader that cannot continue, with the code "gap"."""
    return ChangesEndedError("gap", f"{reason}: follow its changes from now on, and then read the store again")
