"""Tables: an Iceberg table is made if it is missing, and checked otherwise."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from penstock import SinkError
from penstock.contrib.arrow.library import load as load_arrow

from .library import OpenCatalog, load


def open_table(
    catalog: OpenCatalog, name: tuple[str, ...], schema: Any, partition_by: Mapping[str, str], properties: Any
) -> Any:
    """Return the table; it is made if it is missing. Raises SinkError for a namespace that is not there."""
    errors = load().exceptions
    with catalog.explained("open the table"):
        try:
            return catalog.raw.load_table(name)
        except errors.NoSuchTableError:
            pass
    with catalog.explained("make the table"):
        # Other tasks may make it at the same time.
        with suppress(errors.TableAlreadyExistsError, errors.CommitFailedException):
            _make(catalog.raw, name, schema, partition_by, properties)
        return catalog.raw.load_table(name)


def _make(catalog: Any, name: tuple[str, ...], schema: Any, partition_by: Mapping[str, str], properties: Any) -> None:
    parse = load().transforms.parse_transform
    if not catalog.namespace_exists(name[:-1]):
        raise SinkError(f"the catalog has no namespace {'.'.join(name[:-1])!r}: make it, or correct table=")
    if not partition_by:
        catalog.create_table(name, schema, properties=dict(properties))  # some catalogs cannot stage a table
        return
    made = catalog.create_table_transaction(name, schema, properties=dict(properties))
    with made as transaction, transaction.update_spec() as spec:
        for column, transform in partition_by.items():
            spec.add_field(column, parse(transform))


def check_table(metadata: Any, schema: Any, partition_by: Mapping[str, str]) -> None:
    """Raise SinkError for a table that cannot take rows of a schema, or that is divided in another way."""
    _check_columns(metadata, schema)
    _check_partitions(metadata, partition_by)


def _check_columns(metadata: Any, schema: Any) -> None:
    icebergs = metadata.schema()
    arrows = load().io.pyarrow.schema_to_pyarrow(icebergs, include_field_ids=False)
    columns = {field.name: (field, arrow) for field, arrow in zip(icebergs.fields, arrows, strict=True)}
    if lacking := [name for name in schema.names if name not in columns]:
        raise SinkError(f"the table has no column {', '.join(lacking)}; it has {', '.join(columns)}")
    for field in schema:
        of, arrow = columns[field.name]
        if field.type != arrow.type:
            raise SinkError(
                f"column {field.name!r} is of type {of.field_type}, and the sink writes {field.type}: change columns="
            )
        if of.required and field.nullable:
            raise SinkError(f"column {field.name!r} is required: write ' not null' behind its type in columns=")
    if needed := [name for name, (of, _) in columns.items() if of.required and name not in schema.names]:
        raise SinkError(f"column {', '.join(needed)} of the table is required, and is not written")


def _check_partitions(metadata: Any, partition_by: Mapping[str, str]) -> None:
    schema, spec = metadata.schema(), metadata.spec()
    fields = [(schema.find_column_name(field.source_id), field.transform) for field in spec.fields]
    divided = {name: str(transform) for name, transform in fields if str(transform) != "void"}
    if partition_by and list(divided.items()) != list(partition_by.items()):
        raise SinkError(f"the table is partitioned by {divided or 'nothing'}, and partition_by= is {partition_by}")
    arrows = load().io.pyarrow.schema_to_pyarrow(schema, include_field_ids=False)
    for name, transform in fields:
        source, empty = schema.find_type(name), load_arrow().array([], _arrow_type(arrows, name))
        try:
            transform.pyarrow_transform(source)(empty)
        except Exception as error:
            raise SinkError(f"pyiceberg cannot partition by {name!r}, {transform}: {error}") from error


def _arrow_type(schema: Any, name: str) -> Any:
    """Return the type of a column, or of a field of a struct, "address.city"."""
    first, *others = name.split(".")
    type_ = schema.field(first).type
    for each in others:
        type_ = type_.field(each).type
    return type_
