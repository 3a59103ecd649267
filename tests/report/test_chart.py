"""Charts: positions of values, round ticks, downsampling that preserves extremes, escaping."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.report.chart import (
    BOTTOM,
    HEIGHT,
    LEFT,
    MAX_POINTS,
    RIGHT,
    TOP,
    WIDTH,
    Point,
    Series,
    chart,
    downsample,
    format_number,
    legend,
    moving_average,
    padded_limits,
    series,
    tick_label,
    ticks,
)
from millpond.report.markup import Markup, join, standalone, tag


def line(values: list[float], name: str = "a") -> Series:
    records = [{"updates": float(k), "m": value} for k, value in enumerate(values)]
    return series(records, "updates", "m", name=name)


def parse(picture: Markup | None) -> ET.Element:
    assert picture is not None
    return ET.fromstring(picture)


def test_line_spans_plot_area() -> None:
    svg = parse(chart([line([0.0, 1.0])], x_label="updates", y_label="m"))
    places = [tuple(map(float, p.split(","))) for p in svg.find("polyline").get("points").split()]
    height, margin = HEIGHT - TOP - BOTTOM, 0.05 / 1.1  # limits are 5% beyond the values
    assert places[0] == pytest.approx((LEFT, HEIGHT - BOTTOM - margin * height), abs=0.1)
    assert places[1] == pytest.approx((WIDTH - RIGHT, TOP + margin * height), abs=0.1)


def test_chart_has_labels_ticks_levels_and_tooltips() -> None:
    picture = chart([line([1.0, 3.0, 2.0])], x_label="agent steps", y_label="return", levels={"greedy": 4.5})
    svg = parse(picture)
    texts = [element.text for element in svg.iter("text")]
    assert {"agent steps", "return", "greedy 4.5", "2", "3"} <= set(texts)
    titles = [element.text for element in svg.iter("title")]
    assert "3\nat 1 agent steps" in titles
    assert len(titles) == 1 + 3


def test_one_point_is_a_dot_and_no_point_is_no_chart() -> None:
    assert parse(chart([line([2.0])], x_label="x", y_label="y")).find("circle") is not None
    assert chart([line([])], x_label="x", y_label="y") is None


def test_several_curves_have_different_colours_and_a_legend() -> None:
    svg = parse(chart([line([1, 2], "agent0"), line([2, 1], "agent1")], x_label="x", y_label="y"))
    assert [element.get("class") for element in svg.iter("polyline")] == ["line s0", "line s1"]
    assert "agent1: 1\nat 1 x" in [element.text for element in svg.iter("title")]
    assert "agent1" in (legend(["agent0", "agent1"]) or "")
    assert legend(["alone"]) is None


def test_confidence_interval_is_a_band() -> None:
    records = [{"updates": k, "e": 1.0, "low": 0.5, "high": 1.5} for k in range(3)]
    svg = parse(chart([series(records, "updates", "e", band=("low", "high"))], x_label="x", y_label="y"))
    assert svg.find("polygon").get("class") == "band f0"
    assert "1 (95% interval 0.5 to 1.5)\nat 2 x" in [element.text for element in svg.iter("title")]


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=2_000))
def test_downsampling_preserves_extremes_and_mean(values: list[float]) -> None:
    points = downsample([Point(k, value, value, value) for k, value in enumerate(values)])
    assert len(points) == min(len(values), MAX_POINTS)
    assert min(point.low for point in points) == min(values)
    assert max(point.high for point in points) == max(values)
    assert sum(point.count for point in points) == len(values)
    assert sum(point.y * point.count for point in points) == pytest.approx(sum(values), abs=1e-2)
    assert [point.x for point in points] == sorted(point.x for point in points)


def test_missing_and_non_finite_values_are_skipped() -> None:
    records = [{"updates": 0, "m": float("nan")}, {"updates": 1}, {"updates": 2, "m": 5.0}, {"m": 6.0}]
    assert [(point.x, point.y) for point in series(records, "updates", "m").points] == [(2, 5.0)]


def test_moving_average_of_a_constant_is_that_constant() -> None:
    points = [Point(k, 3.0, 3.0, 3.0) for k in range(100)]
    assert moving_average(points) == [(point.x, 3.0) for point in points]


@given(st.floats(-1e9, 1e9), st.floats(1e-6, 1e9))
def test_ticks_are_few_and_within_limits(low: float, wide: float) -> None:
    high = low + wide
    if not high > low or wide < abs(low) * 1e-9:
        return
    values = ticks(low, high)
    assert 1 <= len(values) <= 6
    assert all(low - wide * 1e-6 <= value <= high + wide * 1e-6 for value in values)


def test_tick_labels_numbers_and_limits() -> None:
    assert [tick_label(value, 500_000) for value in (0, 500_000, 1_000_000, 1_500_000)] == ["0", "500k", "1.0M", "1.5M"]
    assert [tick_label(value, 0.05) for value in (0.05, 0.1)] == ["0.05", "0.10"]
    assert tick_label(3e-7, 1e-7) == "3e-07"
    assert [format_number(v) for v in (12_345.0, 0.123456, 1234.56, -2.0)] == ["12,345", "0.1235", "1,234.6", "-2"]
    assert padded_limits(2.0, 2.0) == (1.8, 2.2)
    assert padded_limits(0.0, 0.0) == (-1.0, 1.0)


def test_all_text_is_escaped() -> None:
    evil = '<script>alert("x")</script>'
    assert "<script" not in tag("p", evil, title=evil)
    assert "<script" not in join(evil, tag("b", evil))
    assert tag("p", tag("b", "a & b")) == "<p><b>a &amp; b</b></p>"
    assert '"' not in tag("p", class_='a" onload="x').removeprefix('<p class="').removesuffix('"></p>')
    picture = chart([line([1, 2], evil), line([2, 3])], x_label=evil, y_label=evil, levels={evil: 1.0})
    assert picture is not None
    assert "<script" not in picture


def test_standalone_picture_is_svg_with_colours_for_light_and_dark() -> None:
    picture = chart([line([1.0, 2.0])], x_label="x", y_label="y")
    assert picture is not None
    text = standalone(picture)
    assert ET.fromstring(text).tag == "{http://www.w3.org/2000/svg}svg"
    assert "var(" not in text
    assert "prefers-color-scheme: dark" in text
