"""A sink to Parquet files: each record once, in files that a commit of the log has decided; public imports only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from penstock import hookimpl
from penstock.support.packages import lazy_names

if TYPE_CHECKING:
    from .manifest import Manifest, read_files, read_manifests
    from .sink import ParquetSink as parquet

__all__ = ["Manifest", "parquet", "read_files", "read_manifests"]

__getattr__ = lazy_names(
    __name__,
    {
        "Manifest": "manifest",
        "parquet": "sink:ParquetSink",
        "read_files": "manifest",
        "read_manifests": "manifest",
    },
)


@hookimpl
def penstock_sinks() -> Mapping[str, str]:
    """Name the sink."""
    return {"contrib.parquet": "penstock.contrib.parquet.sink:ParquetSink"}
