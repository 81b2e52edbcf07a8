"""Making the processors of a task's nodes, each inside the application's wrapper if there is one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..errors import PenstockError, ProcessingError, TopologyError
from ..hooks import registry
from ..processor import Processor, ProcessorContext, ValueTransformer
from ..program.messages import describe_error, no_context
from ..program.nodes import ProcessorNode
from ..program.wrapping import ProcessorWrapper
from ..record import Record
from ..support.callbacks import bound, check_methods
from ..support.user_line import at_user_line
from .failures import RECORD_ERRORS

FORWARDS_TOO_EARLY = (
    "forwards a record, when the nodes below are not ready and no record is processed: forward in process, or schedule "
    "a punctuator in init, which forwards when it is called"
)


def make_processor(node: ProcessorNode, wrapper: ProcessorWrapper | None = None) -> Processor | ValueTransformer:
    """Return a new instance of a node's processor, wrapped. Raises PluginError or TopologyError naming the node."""
    supplier = registry().load("processor", node.supplier) if isinstance(node.supplier, str) else node.supplier
    try:
        made = supplier(**node.options)
    except PenstockError as error:
        raise TopologyError(f"node {node.name!r}: making its processor: {error}") from error
    except RECORD_ERRORS as error:
        raise TopologyError(
            f"node {node.name!r}: making its processor with options {dict(node.options)!r} raised "
            f"{describe_error(error)}"
        ) from error
    if not isinstance(made, (Processor, ValueTransformer)):
        raise TopologyError(
            f"node {node.name!r}: its supplier made a {type(made).__name__}, expected a Processor or ValueTransformer"
        )
    check_methods(f"node {node.name!r}", made)
    if wrapper is None:
        return made
    wrapped = _wrapped(node.name, made, wrapper)
    check_methods(f"node {node.name!r}", wrapped)
    return wrapped


def bind_processor(where: str, processor: Processor, context: ProcessorContext) -> Callable[[Record], Any]:
    """Return the function that `bind` returns. Raises ProcessingError if it fails, TopologyError if it returns none."""
    try:
        return bound(processor, context)
    except PenstockError:
        raise
    except RECORD_ERRORS as error:
        early = ": it is called before init: use its argument `context`, not self.context"
        text = f" {describe_error(error)}" if no_context(error) is None else early
        raise ProcessingError(f"{where}: bind raised{text}") from error


def init_processor(where: str, processor: Any, context: object, forwarded: Callable[[], Sequence[int]]) -> None:
    """Call `init`. Raises ProcessingError if it fails, and TopologyError if it forwards; `forwarded` counts that."""
    failure: Exception | SystemExit | None = None
    try:
        processor.init(context)
    except RECORD_ERRORS as error:
        failure = error
    # Looked at afterwards, since a check in `forward` would cost something per record. A task that fails to open
    # commits nothing.
    if any(forwarded()):
        raise TopologyError(f"{where}: init {FORWARDS_TOO_EARLY}") from failure
    if isinstance(failure, PenstockError):
        raise failure
    if failure is not None:
        text = no_context(failure) or describe_error(failure)
        raise ProcessingError(f"{where}: init raised {text}") from failure


def _wrapped(node: str, made: Processor | ValueTransformer, wrapper: ProcessorWrapper) -> Processor | ValueTransformer:
    kind = Processor if isinstance(made, Processor) else ValueTransformer
    try:
        wrapped = wrapper(node, made)
    except PenstockError:
        raise
    except RECORD_ERRORS as error:
        raise TopologyError(
            f"node {node!r}: the setting processor_wrapper raised {type(error).__name__} for its "
            f"{type(made).__name__}: {error}{at_user_line(error)}"
        ) from error
    if not isinstance(wrapped, kind):
        raise TopologyError(
            f"node {node!r}: the setting processor_wrapper made {wrapped!r} of its {type(made).__name__}, expected a "
            f"{kind.__name__}: return what wraps it (see Wrapping{'Processor' if kind is Processor else 'Transformer'})"
            ", or the processor itself"
        )
    return wrapped
