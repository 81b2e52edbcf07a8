"""Copies of files, tables and rows of Python into a topic, each row once; imports logs by interface, and serdes."""

from .copy import CopySummary, copy
from .json_lines import JsonLines
from .parquet import ParquetFiles
from .postgres import PostgresRows
from .rows import FrameRows, Rows
from .source import CopyError, RowBatch, Source, SourceReader
from .sql import SqlRows
from .sqlite import SqliteRows

__all__ = [
    "CopyError",
    "CopySummary",
    "FrameRows",
    "JsonLines",
    "ParquetFiles",
    "PostgresRows",
    "RowBatch",
    "Rows",
    "Source",
    "SourceReader",
    "SqlRows",
    "SqliteRows",
    "copy",
]
