"""What every section of a config is made of: frozen models that refuse unknown keys, and forgiving numbers."""

from __future__ import annotations

import math
from decimal import Decimal, InvalidOperation
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

# Beyond any count of steps or bytes that a run can have; without a bound, 1e999999999 would be written out in full.
LARGEST_POWER = 18


class Section(BaseModel):
    """A frozen part of a config. Unknown keys are refused; every field carries its own description."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)


def _decimal(value: Any) -> Decimal | None:
    """A finite number as people write it in configs: 524288, 524_288, 1e6, 1_000.5."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        number = Decimal(str(value).strip())  # Decimal takes underscores between digits, as Python does
    except InvalidOperation:
        return None
    if not number.is_finite():
        return None
    if number.adjusted() > LARGEST_POWER:
        raise ValueError(f"must be below 10^{LARGEST_POWER + 1}")
    return number


class NotWholeError(ValueError):
    """A number between two whole ones."""

    def __init__(self, below: int) -> None:
        super().__init__("must be a whole number")
        self.around = (below, below + 1)


def whole_number(value: Any) -> int:
    """An integer, also when it is written as 524_288 or 1e6; 1.5 and `true` are refused."""
    if value is None:
        raise ValueError("must be a whole number, not null")
    number = _decimal(value)
    if number is None:
        raise ValueError("must be a whole number, such as 4096, 4_096 or 1e6")
    if number != number.to_integral_value():
        raise NotWholeError(math.floor(number))
    return int(number)


def real_number(value: Any) -> float:
    """A finite number; not `nan`, not `inf`, not `true`."""
    if value is None:
        raise ValueError("must be a number, not null")
    number = _decimal(value)
    if number is None:
        raise ValueError("must be a finite number, such as 0.1, 1e-4 or 5")
    return float(number)


Whole = Annotated[int, BeforeValidator(whole_number)]
Real = Annotated[float, BeforeValidator(real_number)]
Count = Annotated[Whole, Field(ge=1)]  # at least one
Size = Annotated[Whole, Field(ge=1, le=10**12)]  # of a batch, a buffer: beyond this no memory goes
Few = Annotated[Whole, Field(ge=1, le=10**6)]  # agents, workers, steps of a row
Natural = Annotated[Whole, Field(ge=0)]
Positive = Annotated[Real, Field(gt=0)]
NonNegative = Annotated[Real, Field(ge=0)]
Fraction = Annotated[Real, Field(ge=0, le=1)]
Switch = Annotated[bool, Field(strict=True)]  # true or false, and not `yes` or 1
