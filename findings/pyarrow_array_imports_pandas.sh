#!/bin/sh
# pyarrow imports pandas, where it is installed, to make an array of a list of bytes; reading one does not.
#
# pyarrow 26.0.1, pandas 2.3.3 and 3.0.0. pyarrow.array, pyarrow.scalar and Array.to_numpy ask whether what they have is
# of pandas, and import it for that, although neither what goes in nor what comes out is. to_pylist, cast, sorting,
# reading and writing a stream, and arrays made of buffers do without it. Seen: 40 to 45 MB, and 0.2 s of CPU, in
# each process that calls pyarrow.array([b"x"]) once: a server, or one of many workers, that never uses pandas.
set -eu
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
for pandas in 2.3.3 3.0.0; do
    python3 -m venv "$directory/$pandas"
    "$directory/$pandas/bin/pip" install --quiet "pandas==$pandas" pyarrow==26.0.1
    "$directory/$pandas/bin/python" - <<'PYTHON'
import resource
import sys

import pyarrow
import pyarrow.compute


def imports_pandas(call):
    call()
    return "pandas" in sys.modules


buffers = [None, pyarrow.py_buffer(bytes([0, 0, 0, 0, 1, 0, 0, 0])), pyarrow.py_buffer(b"x")]
array = pyarrow.Array.from_buffers(pyarrow.binary(), 1, buffers)
table = pyarrow.table([array], ["cell"])


def through_a_stream():
    sink = pyarrow.BufferOutputStream()
    with pyarrow.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    return pyarrow.ipc.open_stream(sink.getvalue()).read_all()


assert not imports_pandas(array.to_pylist)
assert not imports_pandas(through_a_stream)
assert not imports_pandas(lambda: table.take(pyarrow.compute.sort_indices(table, sort_keys=[("cell", "ascending")])))
before = resource.getrusage(resource.RUSAGE_SELF)
assert imports_pandas(lambda: pyarrow.array([b"x"], pyarrow.binary()))
after = resource.getrusage(resource.RUSAGE_SELF)
import pandas

grown = (after.ru_maxrss - before.ru_maxrss) / 1024
print(f"pandas {pandas.__version__}: {grown:.0f} MB, {after.ru_utime - before.ru_utime:.2f} s of CPU")
assert grown > 15
PYTHON
done
