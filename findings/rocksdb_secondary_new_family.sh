#!/bin/sh
# A RocksDB secondary calls healthy files corrupt for ever once the primary has a column family that it does not know.
#
# rocksdict 0.3.29 (RocksDB). A secondary follows a primary by `try_catch_up_with_primary`. After the primary has created
# one more column family and flushed it, every further catch-up of a secondary that was opened before fails with
# "Corruption: ... MANIFEST record referencing unknown column family", although nothing is damaged: a secondary that is
# opened anew reads everything. So a follower must look for new families before it catches up, or open anew when that
# fails, and must not tell its operator to delete the files.
set -eu
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
python3 -m venv "$directory/venv"
"$directory/venv/bin/pip" install --quiet rocksdict==0.3.29
"$directory/venv/bin/python" - "$directory" <<'PYTHON'
import sys

from rocksdict import AccessType, Options, Rdict

place = sys.argv[1]
primary = Rdict(f"{place}/primary", Options(raw_mode=True))


def secondary(name):
    return Rdict(
        f"{place}/primary", Options(raw_mode=True), access_type=AccessType.secondary(f"{place}/{name}")
    )


primary[b"key"] = b"1"
primary.flush()
older = secondary("older")
older.try_catch_up_with_primary()
assert older[b"key"] == b"1"

family = primary.create_column_family("another", Options(raw_mode=True))
family[b"key"] = b"2"
family.flush()
primary[b"key"] = b"3"
primary.flush()
for attempt in (1, 2):
    try:
        older.try_catch_up_with_primary()
    except Exception as error:
        print(f"catch-up {attempt} of the secondary from before: {error}")
        assert "unknown column family" in str(error)
    else:
        raise AssertionError("the secondary caught up")
newer = secondary("newer")
newer.try_catch_up_with_primary()
print("a secondary that is opened anew reads", newer[b"key"])
assert newer[b"key"] == b"3"
PYTHON
