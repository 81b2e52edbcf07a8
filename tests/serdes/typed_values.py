"""Types of programs for the tests of `of`; their annotations are text, as in most programs."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal
from typing import Literal, NamedTuple, NotRequired, TypedDict
from uuid import UUID

import msgspec
import pydantic


class Status(enum.Enum):
    OPEN = "open"
    PAID = "paid"


class Point(NamedTuple):
    x: int
    y: int = 0


class Address(TypedDict):
    city: str
    street: NotRequired[str]


@dataclass(frozen=True)
class Line:
    sku: str
    price: Decimal
    count: int = 1


@dataclass
class Order:
    id: UUID
    day: date
    lines: list[Line]
    status: Status = Status.OPEN
    where: Point | None = None
    address: Address | None = None
    tags: set[str] = field(default_factory=set)
    counts: dict[str, int] = field(default_factory=dict)
    weight: float = 0.0
    kind: Literal["new", "used"] = "new"
    refund_of: Order | None = None


class Payment(msgspec.Struct, tag=True):
    amount: Decimal
    order: Line | None = None


class Refund(msgspec.Struct, tag=True, forbid_unknown_fields=True):
    amount: Decimal


class Customer(pydantic.BaseModel):
    name: str
    born: date | None = None
    orders: list[Line] = []
    mail: str = pydantic.Field("", alias="e-mail")


@dataclass
class Visit:
    who: Customer
    at: Decimal
