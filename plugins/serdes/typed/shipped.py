"""Types that travel to other processes: their annotations, as types instead of text."""

from __future__ import annotations

from dataclasses import MISSING
from typing import Any, get_args, get_type_hints

from penstock import ConfigError


def classes_inside(kind: Any) -> list[type]:
    """Return the classes with fields that a type consists of. Raises NameError for an annotation that names nothing."""
    found: list[type] = []
    waiting: list[Any] = [kind]
    seen: dict[int, Any] = {}  # keeps them: another one may get the id of one that is gone
    while waiting:
        each = waiting.pop()
        if id(each) in seen:
            continue
        seen[id(each)] = each
        waiting += get_args(each)
        if is_model(each):  # pydantic has resolved its annotations
            found.append(each)
        elif isinstance(each, type) and any(vars(base).get("__annotations__") for base in each.__mro__):
            found.append(each)
            waiting += get_type_hints(each, include_extras=True).values()
    return found


def prepare_classes(kind: Any, serde: str) -> list[type]:
    """Return `classes_inside` with pinned annotations. Raises ConfigError, for `serde`, for one that names nothing."""
    try:
        classes = classes_inside(kind)
        pin_annotations(classes)
    except NameError as error:
        raise ConfigError(
            f"{serde}: the annotations of {kind!r} cannot be read: {error}; declare the class, and import what its "
            "fields name, at the top of the module"
        ) from error
    return classes


def is_model(kind: Any) -> bool:
    """Return whether a type is pydantic's, of any version: a model, or a dataclass of pydantic's."""
    return isinstance(kind, type) and any(
        hasattr(kind, name) for name in ("__pydantic_core_schema__", "__pydantic_model__", "__fields_set__")
    )


def pin_annotations(kinds: list[type]) -> None:
    """Replace annotations that are text by the types that they name.

    A class of a script is sent to task hosts without its module, where text such as "Decimal" has no meaning.
    """
    for kind in kinds:
        for base in kind.__mro__:
            own = vars(base).get("__annotations__", {})
            if not is_model(base) and any(not isinstance(annotation, type) for annotation in own.values()):
                hints = get_type_hints(base, include_extras=True)
                base.__annotations__ = {name: hints[name] for name in own}
                for field in vars(base).get("__dataclass_fields__", {}).values():  # pydantic reads these
                    field.type = hints[field.name]


def restore_fields(kinds: list[type]) -> None:
    """Give the fields of dataclasses that were sent as classes of a script the very `MISSING` of this process.

    Pickling makes another one, and a field without a default would have that as its default.
    """
    for kind in kinds:
        for field in getattr(kind, "__dataclass_fields__", {}).values():
            for name in ("default", "default_factory", "kw_only"):
                if type(getattr(field, name)) is type(MISSING):
                    setattr(field, name, MISSING)
