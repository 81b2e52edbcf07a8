"""The processor `acme.dedupe`."""

from penstock import Processor, ProcessorContext, Record

from .settings import IGNORE_CASE


class Dedupe(Processor):
    """Forwards a record unless its key came with the same value before; the store `store` keeps the last one."""

    def __init__(self, store: str = "last") -> None:
        self._name = store

    def init(self, context: ProcessorContext) -> None:
        """Look up the store."""
        super().init(context)
        self._last = context.get_store(self._name)
        self._ignore_case = IGNORE_CASE.of(context.config)

    def process(self, record: Record) -> None:
        """Compare one record with the last of its key."""
        value = record.value.lower() if self._ignore_case else record.value
        if self._last.get(record.key) != value:
            self._last.put(record.key, value)
            self.context.forward(record)
