"""StampedStore and HeadersStore: key-value stores whose values have timestamps, or timestamps and headers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock import HeadersKeyValueStore, TimestampedKeyValueStore, ValueAndTimestamp

from ..rows.headers_form import HeadersForm
from ..rows.value_form import INT64_MAX, TimestampedForm
from .plain import PlainStore


class StampedStore(PlainStore, TimestampedKeyValueStore[Any]):
    """A TimestampedKeyValueStore: values are ValueAndTimestamp."""

    form_of_values = TimestampedForm

    def _compile_put(self) -> Callable[[Any, Any], None]:
        pending, clean, slow = self.pending, self.clean, self._put
        key_types, free_types, fits = self.keys.types, self.values.free_types, self.values.fits

        def put(key: Any, value: Any) -> None:
            if type(value) is ValueAndTimestamp and type(key) in key_types and (key in pending or key in clean):
                content, timestamp = value
                if (
                    (type(content) in free_types or fits(content))
                    and type(timestamp) is int
                    and 0 <= timestamp <= INT64_MAX
                ):
                    pending[key] = value
                    return
            slow(key, value)

        return put


class HeadersStore(PlainStore, HeadersKeyValueStore[Any]):
    """A HeadersKeyValueStore: values are ValueTimestampHeaders."""

    form_of_values = HeadersForm

    def _compile_put(self) -> Callable[[Any, Any], None]:
        pending, clean, slow = self.pending, self.clean, self._put
        key_types, can_wait = self.keys.types, self.values.compile_test()

        def put(key: Any, value: Any) -> None:
            if type(key) in key_types and (key in pending or key in clean) and can_wait(value):
                pending[key] = value
            else:
                slow(key, value)

        return put
