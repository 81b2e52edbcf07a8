#!/bin/sh
# A dataclass that msgspec has converted once cannot be sent by cloudpickle any more.
#
# msgspec 0.22.0 and cloudpickle 3.1.3, which PySpark sends functions with. msgspec keeps what it knows of a class in the
# class, as `__msgspec_cache__`, an object that cannot be pickled. A class of a script goes along by value, with all its
# attributes. Seen: the class is pickled before its first `msgspec.convert` and raises TypeError after it, so a function
# that names the class can be sent to Spark or not, by what ran before. Deleting the attribute mends it: msgspec makes
# another.
set -eu
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
python3 -m venv "$directory/venv"
"$directory/venv/bin/pip" install --quiet 'msgspec==0.22.0' 'cloudpickle==3.1.3'
"$directory/venv/bin/python" - <<'PYTHON'
from dataclasses import dataclass

import cloudpickle
import msgspec


@dataclass
class Order:
    item: str


def pickled():
    try:
        cloudpickle.dumps(Order)
    except TypeError as error:
        print("not pickled:", error)
        return False
    print("pickled")
    return True


assert pickled()
assert msgspec.convert({"item": "tea"}, Order) == Order("tea")
assert not pickled()
del Order.__msgspec_cache__
assert pickled()
assert msgspec.convert({"item": "mug"}, Order) == Order("mug")
PYTHON
