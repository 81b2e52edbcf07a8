#!/bin/sh
# The JSON that Protobuf makes of its largest float cannot be parsed by Protobuf.
#
# protobuf 7.36.2, a FloatValue with the largest finite float. MessageToDict shortens it to the digits that name a float
# of 32 bits, 3.4028235e+38; as a float of 64 bits, which Python has, this lies above the largest of 32 bits, and
# ParseDict refuses what lies above. Seen: the message is written, and "Float value too large" when it is read; the next
# smaller float comes back.
set -eu
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
python3 -m venv "$directory/venv"
"$directory/venv/bin/pip" install --quiet 'protobuf==7.36.2'
"$directory/venv/bin/python" - <<'PYTHON'
import struct

from google.protobuf.json_format import MessageToDict, ParseDict, ParseError
from google.protobuf.wrappers_pb2 import FloatValue


def float_of(bits: int) -> float:
    return struct.unpack("<f", struct.pack("<I", bits))[0]


smaller, largest = FloatValue(value=float_of(0x7F7FFFFE)), FloatValue(value=float_of(0x7F7FFFFF))
assert ParseDict(MessageToDict(smaller), FloatValue()) == smaller
try:
    ParseDict(MessageToDict(largest), FloatValue())
except ParseError as error:
    print("written as", MessageToDict(largest), "and refused:", error)
    assert "Float value too large" in str(error)
else:
    raise AssertionError("it came back")
PYTHON
