"""Word count. Teaches processors, a store, and a repartition topic that brings the records of each word together.

$ penstock topics create text word-counts --partitions 2
$ penstock produce text --file README.md
$ penstock run examples/02_word_count.py:application
$ penstock consume word-counts --print-key --key-separator ' ' --value-serde int
"""

from __future__ import annotations

import re

from penstock import Application, Processor, ProcessorContext, Record, Topology, key_value_store

WORD = re.compile(r"[^\W\d_]+")


class Words(Processor):
    """Forwards each word of a line, in lower case, as the key of a record."""

    def process(self, record: Record) -> None:
        """Split one line."""
        for word in WORD.findall(record.value.lower()):
            self.context.forward(record.with_key(word).with_value(None))


class Count(Processor):
    """Counts by key and forwards each new count."""

    def init(self, context: ProcessorContext) -> None:
        """Look up the store once, not for each record."""
        super().init(context)
        self.counts = context.get_store("counts")

    def process(self, record: Record) -> None:
        """Count one word."""
        count = (self.counts.get(record.key) or 0) + 1
        self.counts.put(record.key, count)
        self.context.forward(record.with_value(count))


# The lines of a text may be in any partition. Counting needs all records of a word in one task, so they go through a
# topic with the word as their key. Stores are in LMDB unless the store or a setting names another backend.
topology = (
    Topology()
    .add_source("text", "text")
    .add_processor("words", Words, "text")
    .add_repartition("by-word", "words")
    .add_processor("count", Count, "by-word", stores=[key_value_store("counts", key_serde="str")])
    .add_sink("word-counts", "word-counts", "count", value_serde="int")
)

application = Application("word-count", topology)
