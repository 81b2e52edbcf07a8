"""The checks of single arguments that `Topology` makes.

Each raises TopologyError, or PluginError for a name that is not installed.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ..errors import ConfigError, PluginError, TopologyError
from ..hooks import registry
from ..processor import Processor, ValueTransformer
from ..serde import Serde
from ..store import StoreBuilder
from ..store.specs import OWN, StoreSpec, declared_serdes
from ..support.callbacks import check_called_with, check_methods, check_plain
from ..support.names import BAD_NAME, did_you_mean, is_topic_name
from .nodes import Node, ProcessorNode, SinkNode, SourceNode
from .serdes import find_serde


def kind_of(node: Node) -> str:
    """Return the name of a node in messages."""
    return {SourceNode: "source", ProcessorNode: "processor", SinkNode: "sink"}[type(node)]


def nearest(name: object, known: Iterable[str]) -> str:
    """Return the end of a message about an unknown name: the nearest known ones, or all."""
    names = list(known)
    if question := did_you_mean(str(name), names):
        return f"; {question}"
    listed = ", ".join(names[:20]) + (f" and {len(names) - 20} more" if len(names) > 20 else "")
    return f"; there is: {listed}" if names else ""


def check_name(kind: str, name: object) -> None:
    """Check the name of a node. Raises TopologyError."""
    if not isinstance(name, str) or not name:
        raise TopologyError(f"{kind}: expected a name, found {name!r}")


def check_names(verb: str, names: Iterable[object]) -> None:
    """Refuse a list in place of several names."""
    for each in names:
        if not isinstance(each, str):
            hint = f"; write {verb}({', '.join(map(repr, each))})" if isinstance(each, (list, tuple, set)) else ""
            raise TopologyError(f"{verb}: expected names of nodes, found {each!r}{hint}")


def check_topic(where: str, topic: object) -> None:
    """Check the name of a topic by Kafka's rules."""
    if not is_topic_name(topic):
        raise TopologyError(f"{where}: a topic's name is 1 to 249 letters, digits, '.', '_' or '-', found {topic!r}")


def check_partitions(where: str, partitions: object) -> None:
    """Check a number of partitions, or None."""
    if partitions is not None and (not isinstance(partitions, int) or isinstance(partitions, bool) or partitions < 1):
        raise TopologyError(f"{where}: expected a whole number of partitions above 0, found {partitions!r}")


def check_builder(builder: object) -> None:
    """Check the declaration of a store: its type, and that its backend and serdes are installed."""
    if not isinstance(builder, StoreBuilder):
        raise TopologyError(
            f"expected a declared store, found {builder!r}; write for instance key_value_store(NAME), or name one that "
            "is in the topology"
        )
    if not is_topic_name(builder.name):
        raise TopologyError(f"store {builder.name!r}: {BAD_NAME}")
    if isinstance(builder, StoreSpec):
        kind = type(builder)
        if not isinstance(kind.kind, str) or (kind.kind == OWN and kind.build is StoreSpec.build):
            raise TopologyError(
                f"store {builder.name!r}: class {kind.__name__} sets no `kind`, the name of an installed one; for a "
                "kind of this program alone, override `build(self, bytes_store, context)`, which returns the store"
            )
        if kind.kind != OWN:
            check_installed(f"store {builder.name!r}", "store kind", kind.kind)
    if builder.backend is not None:
        check_installed(f"store {builder.name!r}", "store backend", builder.backend)
    serdes = declared_serdes(builder)
    check_serdes(f"store {builder.name!r}", serdes.get("key_serde"), serdes.get("value_serde"))


def check_chosen_topic(where: str, topic: object) -> None:
    """Check a topic of a sink: a name, or a function that chooses a topic for each record."""
    if callable(topic):
        check_function(where, "topic", topic, ("record", "metadata"))
    elif isinstance(topic, str):
        check_topic(where, topic)
    else:
        raise TopologyError(f"{where}: expected a topic's name or a function that chooses it, found {topic!r}")


def check_partitioner(where: str, partitioner: object, partition_by: object) -> None:
    """Check a partitioner: a function or None, and not two functions."""
    check_function(where, "partitioner", partitioner, ("topic", "record", "partitions"))
    check_function(where, "partition_by", partition_by, ("key",))
    if partitioner is not None and partition_by is not None:
        raise TopologyError(f"{where}: partitioner and partition_by both choose the partition: leave one of them out")


def check_function(where: str, what: str, function: object, arguments: Sequence[str]) -> None:
    """Check a function, or None: that it can be called with `arguments`, which the message names."""
    if function is None:
        return
    if not callable(function):
        raise TopologyError(f"{where}: {what} is a function, found {function!r}")
    check_plain(where, what, function)
    check_called_with(where, what, function, arguments)


def check_serdes(where: str, key_serde: object, value_serde: object) -> None:
    """Check a serde: an object, the name of an installed one, or None."""
    for what, serde in (("key_serde", key_serde), ("value_serde", value_serde)):
        if isinstance(serde, str):
            try:
                find_serde(serde, f"{where}, {what}")
            except PluginError as error:
                raise PluginError(f"{where}, {what}: {error}") from error
            except ConfigError as error:
                raise TopologyError(str(error)) from error
        elif serde is not None and not isinstance(serde, Serde):
            raise TopologyError(
                f"{where}: {what} is a Serde or the name of an installed one, found {serde!r}{_serde_advice(serde)}"
            )


def _serde_advice(found: object) -> str:
    if not isinstance(found, type):
        return ""
    name = found.__name__
    if issubclass(found, Serde):
        return f": make one, {name}()"
    return f": name it, {name!r}" if found.__module__ == "builtins" else f": write of({name}) for the serde of a type"


def check_installed(where: str, kind: str, name: str) -> None:
    """Refuse the name of a component that no installed plugin brings."""
    try:
        registry().find(kind, name)
    except PluginError as error:
        raise PluginError(f"{where}: {error}") from error


def check_supplier(where: str, supplier: object, options: Mapping[str, Any]) -> object:
    """Check that a supplier can make processors; make one only if its type does not show it.

    Returns the supplier; for the name of an installed one, the component of that name.
    """
    if isinstance(supplier, str):
        check_installed(where, "processor", supplier)
        supplier = registry().load("processor", supplier)
    if isinstance(supplier, (Processor, ValueTransformer)):
        raise TopologyError(
            f"{where}: each task needs an instance of its own, found one instance of {type(supplier).__name__}; pass "
            "the class, or a function that makes one"
        )
    if not callable(supplier):
        raise TopologyError(
            f"{where}: expected a class, a factory or the name of an installed processor, found {supplier!r}"
        )
    check_plain(where, "its supplier", supplier)
    made = supplier.func if isinstance(supplier, functools.partial) else supplier
    if isinstance(made, type):
        check_class(where, made)
    try:
        inspect.signature(supplier).bind(**options)
    except ValueError:
        pass  # Some callables written in C have no signature.
    except TypeError as error:
        raise TopologyError(
            f"{where}: its supplier cannot be called with the options {sorted(options) or 'none'}: "
            f"{error}{_taken_options(supplier, options)}{_no_supplier(made, options)}"
        ) from error
    # A class makes a new instance at each call, so it need not be tried: a constructor may be costly. What a factory
    # makes shows only when it is called.
    if not isinstance(made, type) or _has_own_way_of_making(made):
        try_supplier(where, supplier, options)
    return supplier


OF_NODES = ("name", "stores", "timers", "timer_key_serde", "key_serde", "value_serde", "timestamp_extractor")
"""Arguments of the verbs that add nodes, which are therefore no options of a supplier."""


def _no_supplier(supplier: Any, options: Mapping[str, Any]) -> str:
    """Return the end of a message about a function that processes records itself and makes no processor."""
    if options or not inspect.isfunction(supplier):
        return ""
    return (
        "; it makes processors: write a class with a method process(self, record); for a function of values the DSL "
        "has map_values(FUNCTION)"
    )


def _taken_options(supplier: Any, options: Mapping[str, Any]) -> str:
    """Return the end of a message about missing arguments of a supplier that have names of a node's own."""
    given = inspect.signature(supplier).parameters.values()
    taken = [
        each.name for each in given if each.name in OF_NODES and each.name not in options and each.default is each.empty
    ]
    if not taken:
        return ""
    how = ", ".join(f"{name}=..." for name in taken)
    return (
        f"; {' and '.join(map(repr, taken))} are arguments of the node itself: give them with "
        f"functools.partial({getattr(supplier, '__name__', 'SUPPLIER')}, {how})"
    )


def check_class(where: str, kind: type) -> None:
    """Check that a class is a Processor or a ValueTransformer, and not abstract."""
    if not issubclass(kind, (Processor, ValueTransformer)):
        raise TopologyError(
            f"{where}: class {kind.__name__} is neither a Processor nor a ValueTransformer; derive it from one of them"
        )
    if inspect.isabstract(kind):
        missing = ", ".join(sorted(kind.__abstractmethods__))
        raise TopologyError(f"{where}: class {kind.__name__} is abstract; write its method {missing}")
    check_methods(where, kind)


def try_supplier(where: str, supplier: Callable[..., object], options: Mapping[str, Any]) -> None:
    """Call a supplier twice, and check that it makes processors, and not the same one twice."""
    try:
        one, other = supplier(**options), supplier(**options)
    except Exception as error:
        raise TopologyError(f"{where}: its supplier raised {type(error).__name__}: {error}") from error
    if not isinstance(one, (Processor, ValueTransformer)):
        raise TopologyError(f"{where}: its supplier made {one!r}, which is neither a Processor nor a ValueTransformer")
    if one is other:
        raise TopologyError(
            f"{where}: its supplier returned the same object twice; each task needs an instance of its own"
        )
    check_methods(where, one)


def _has_own_way_of_making(kind: type) -> bool:
    """Return whether calling a class may do something else than make an instance (a singleton does)."""
    maker: Any = type(kind)
    new: Any = kind.__new__
    return maker.__call__ is not type.__call__ or new is not object.__new__


def unlogged_store(where: str, builder: StoreBuilder) -> StoreBuilder:
    """Return a declared store as one that is not in the changelog."""
    if not builder.logged:
        return builder
    if not dataclasses.is_dataclass(builder) or isinstance(builder, type):
        raise TopologyError(f"{where}: its topic is its changelog; declare the store with logged=False")
    return dataclasses.replace(builder, logged=False)
