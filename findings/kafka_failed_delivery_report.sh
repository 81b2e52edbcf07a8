#!/bin/sh
# The delivery report of a record that failed has its key and value, and neither its timestamp nor its headers.
#
# confluent-kafka 2.16.1. A producer that wants to send a failed record elsewhere (a dead letter topic, a second cluster)
# looks at the Message that `on_delivery` gets. Seen: error(), topic(), key() and value() are those of the record;
# timestamp() is (TIMESTAMP_NOT_AVAILABLE, -1) and headers() is None, although both were given to produce(). Who needs
# them keeps them beside the record, in a closure for instance. Nothing listens at the address here, so that the record
# times out.
set -eu
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
python3 -m venv "$directory/venv"
"$directory/venv/bin/pip" install --quiet confluent-kafka==2.16.1
"$directory/venv/bin/python" - 2>/dev/null <<'PYTHON'
from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, KafkaError, Producer

reports = []
producer = Producer({"bootstrap.servers": "127.0.0.1:1", "message.timeout.ms": 500})
producer.produce(
    "orders",
    key=b"anna",
    value=b"3",
    headers=[("trace", b"7f")],
    timestamp=1_700_000_000_000,
    on_delivery=lambda error, message: reports.append((error, message)),
)
producer.flush(30)
((error, message),) = reports
print("error:", error.name(), "; key and value:", message.key(), message.value())
print("timestamp:", message.timestamp(), "; headers:", message.headers())
assert error.code() == KafkaError._MSG_TIMED_OUT
assert (message.topic(), message.key(), message.value()) == ("orders", b"anna", b"3")
assert message.timestamp() == (TIMESTAMP_NOT_AVAILABLE, -1)
assert message.headers() is None
PYTHON
