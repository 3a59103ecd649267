"""Building blocks of the sections: frozen models that refuse unknown keys, and numbers as people write them."""

from __future__ import annotations

import math
from decimal import Decimal, InvalidOperation
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

# Larger than any number of steps or bytes of a run. Without a bound, 1e999999999 would be expanded to a billion digits.
LARGEST_POWER = 18


class ConfigSection(BaseModel):
    """A frozen section of a config. Unknown keys are refused; every field has a description."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)


def _decimal(value: Any) -> Decimal | None:
    """Parse a finite number as people write it in configs: 524288, 524_288, 1e6, 1_000.5. None if it is none."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        number = Decimal(str(value).strip())  # Decimal accepts underscores between digits, as Python does
    except InvalidOperation:
        return None
    if not number.is_finite():
        return None
    if number.adjusted() > LARGEST_POWER:
        raise ValueError(f"must be below 10^{LARGEST_POWER + 1}")
    return number


class NotWholeError(ValueError):
    """A number between two integers, which are in `around`."""

    def __init__(self, below: int) -> None:
        super().__init__("must be a whole number")
        self.around = (below, below + 1)


def whole_number(value: Any) -> int:
    """Parse an integer, also if written as 524_288 or 1e6. Refuse 1.5 and `true`."""
    if value is None:
        raise ValueError("must be a whole number, not null")
    number = _decimal(value)
    if number is None:
        raise ValueError("must be a whole number, such as 4096, 4_096 or 1e6")
    if number != number.to_integral_value():
        raise NotWholeError(math.floor(number))
    return int(number)


def real_number(value: Any) -> float:
    """Parse a finite number. Refuse `nan`, `inf` and `true`."""
    if value is None:
        raise ValueError("must be a number, not null")
    number = _decimal(value)
    if number is None:
        raise ValueError("must be a finite number, such as 0.1, 1e-4 or 5")
    return float(number)


Whole = Annotated[int, BeforeValidator(whole_number)]
Real = Annotated[float, BeforeValidator(real_number)]
Count = Annotated[Whole, Field(ge=1)]  # at least one
Size = Annotated[Whole, Field(ge=1, le=10**12)]  # of a batch or buffer; more than any memory holds
Few = Annotated[Whole, Field(ge=1, le=10**6)]  # agents, workers, steps of a row
Natural = Annotated[Whole, Field(ge=0)]
Positive = Annotated[Real, Field(gt=0)]
NonNegative = Annotated[Real, Field(ge=0)]
Fraction = Annotated[Real, Field(ge=0, le=1)]
Switch = Annotated[bool, Field(strict=True)]  # true or false, not `yes` or 1
