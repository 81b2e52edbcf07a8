"""Making the processors of a task's nodes, each inside the application's wrapper if there is one."""

from __future__ import annotations

from ..errors import PenstockError, TopologyError
from ..hooks import registry
from ..processor import Processor, ValueTransformer
from ..program.nodes import ProcessorNode
from ..wrapping import ProcessorWrapper
from .failures import RECORD_ERRORS


def make_processor(node: ProcessorNode, wrapper: ProcessorWrapper | None = None) -> Processor | ValueTransformer:
    """Return a new instance of a node's processor, wrapped. Raises PluginError or TopologyError naming the node."""
    supplier = registry().load("processor", node.supplier) if isinstance(node.supplier, str) else node.supplier
    try:
        made = supplier(**node.options)
    except PenstockError:
        raise
    except RECORD_ERRORS as error:
        raise TopologyError(
            f"node {node.name!r}: making its processor with options {dict(node.options)!r} raised "
            f"{type(error).__name__}: {error}"
        ) from error
    if not isinstance(made, (Processor, ValueTransformer)):
        raise TopologyError(
            f"node {node.name!r}: its supplier made a {type(made).__name__}, expected a Processor or ValueTransformer"
        )
    return made if wrapper is None else _wrapped(node.name, made, wrapper)


def _wrapped(node: str, made: Processor | ValueTransformer, wrapper: ProcessorWrapper) -> Processor | ValueTransformer:
    kind = Processor if isinstance(made, Processor) else ValueTransformer
    try:
        wrapped = wrapper(node, made)
    except PenstockError:
        raise
    except RECORD_ERRORS as error:
        raise TopologyError(
            f"node {node!r}: the setting processor_wrapper raised {type(error).__name__} for its "
            f"{type(made).__name__}: {error}"
        ) from error
    if not isinstance(wrapped, kind):
        raise TopologyError(
            f"node {node!r}: the setting processor_wrapper made {wrapped!r} of its {type(made).__name__}, expected a "
            f"{kind.__name__}: return what wraps it (see Wrapping{'Processor' if kind is Processor else 'Transformer'})"
            ", or the processor itself"
        )
    return wrapped
