#!/bin/sh
# Confluent's AvroSerializer writes the empty value of the schema "bytes", and its AvroDeserializer refuses to read it.
#
# confluent-kafka 2.16.1, with its registry in memory (mock://). Bytes at the top of a schema are written as they are,
# as the Java serializer does, and not with Avro's length before them. So b"" is the five bytes of the framing alone, and
# the deserializer of the same package wants six. Seen: b"" raises SerializationError, which calls the message one of
# another serializer; b"\0" and the empty "string", which has its length, are read back. A program that may write empty
# bytes uses a record with a field of bytes.
set -eu
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
python3 -m venv "$directory/venv"
"$directory/venv/bin/pip" install --quiet 'confluent-kafka[avro,schemaregistry]==2.16.1'
"$directory/venv/bin/python" - <<'PYTHON'
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext, SerializationError

registry = SchemaRegistryClient.new_client({"url": "mock://findings"})


def there_and_back(kind: str, value: object) -> object:
    context = SerializationContext(f"topic-of-{kind}", MessageField.VALUE)
    data = AvroSerializer(registry, f'"{kind}"')(value, context)
    try:
        found = AvroDeserializer(registry)(data, context)
    except SerializationError as error:
        found = error
    print(kind, repr(value), "is", data.hex(" "), "and read:", repr(found))
    return found


assert there_and_back("bytes", b"\0") == b"\0"
assert there_and_back("string", "") == ""
assert isinstance(there_and_back("bytes", b""), SerializationError)
PYTHON
