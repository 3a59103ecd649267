"""Numbers in sections are parsed as people write them."""

from __future__ import annotations

import pytest

from millpond.config.recipe import NotWholeError, real_number, whole_number


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        (4096, 4096),
        ("4_096", 4096),
        ("1e6", 1_000_000),
        (1e6, 1_000_000),
        ("2.5e3", 2500),
        (" 7 ", 7),
        ("-3", -3),
        (8.0, 8),
    ],
)
def test_integers_are_parsed_as_people_write_them(written: object, meant: int) -> None:
    assert whole_number(written) == meant
    assert type(whole_number(written)) is int


@pytest.mark.parametrize(
    "written", [True, None, "many", 1.5, "1.5", "nan", "inf", float("nan"), [4], "1e19", "1e999999999", ""]
)
def test_other_values_are_not_integers(written: object) -> None:
    with pytest.raises(ValueError, match="must be"):
        whole_number(written)


def test_a_fraction_names_the_integers_around_it() -> None:
    with pytest.raises(NotWholeError) as caught:
        whole_number("1000.5")
    assert caught.value.around == (1000, 1001)


@pytest.mark.parametrize(("written", "meant"), [("1e-4", 1e-4), (3, 3.0), ("1_000.5", 1000.5)])
def test_numbers_are_parsed_as_people_write_them(written: object, meant: float) -> None:
    assert real_number(written) == meant


@pytest.mark.parametrize("written", [False, None, "nan", "-inf", "fast", "1e400"])
def test_other_values_are_not_numbers(written: object) -> None:
    with pytest.raises(ValueError, match="must be"):
        real_number(written)
