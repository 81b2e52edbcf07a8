#!/bin/sh
# A micro-batch with a checkpoint on a local disk starts dozens of processes, readlink and chmod, beside its work.
#
# pyspark 4.3.0 (needs Java 17), without Hadoop's native library, which pip does not bring. Hadoop's local file system
# then asks the programs `readlink` and `chmod` of the PATH about each file that Spark's checkpoint manager creates and
# renames: offsets, commits, a delta for each partition of the state, and the check-sum file (.crc) beside each of them.
# Seen for a count by key with four partitions: 70 processes a batch, 56 readlink and 14 chmod, for two rows.
set -eu
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
python3 -m venv "$directory/venv"
"$directory/venv/bin/pip" install --quiet pyspark==4.3.0
mkdir "$directory/bin" "$directory/in"
for program in readlink chmod; do
    real=$(command -v "$program")
    printf '#!/bin/sh\necho %s >>"%s/calls"\nexec "%s" "$@"\n' "$program" "$directory" "$real" \
        >"$directory/bin/$program"
    chmod +x "$directory/bin/$program"
done
: >"$directory/calls"
PATH="$directory/bin:$PATH" "$directory/venv/bin/python" - "$directory" 2>/dev/null <<'PYTHON'
import collections
import pathlib
import sys

from pyspark.sql import SparkSession

directory = pathlib.Path(sys.argv[1])
session = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
session.conf.set("spark.sql.shuffle.partitions", "4")
lines = session.readStream.text(str(directory / "in"))
query = (
    lines.groupBy("value").count().writeStream.format("noop").outputMode("update")
    .option("checkpointLocation", str(directory / "checkpoint")).start()
)


def calls():
    return collections.Counter((directory / "calls").read_text().split())


seen = []
for number in range(4):
    made = directory / "new"
    made.write_text("a\nb\n")
    made.rename(directory / "in" / f"{number}.txt")
    before = calls()
    query.processAllAvailable()
    seen.append(calls() - before)
query.stop()
for each in seen:
    print(dict(each))
assert all(each["readlink"] >= 10 and each["chmod"] >= 8 for each in seen[1:]), seen
PYTHON
