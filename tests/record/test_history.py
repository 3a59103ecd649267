from millpond.record.history import ASCII_BLOCKS, MAX_POINTS, Curve, History, sparkline


def test_sparkline_spans_minimum_to_maximum():
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7], 10) == "▁▂▃▄▅▆▇█"
    assert sparkline([5, 5, 5], 10) == "▁▁▁"
    assert sparkline([0, 0, 7, 7], 2) == "▁█"  # means of two
    assert sparkline([0, 7], 10, ASCII_BLOCKS) == "_#"
    assert sparkline([], 10) == sparkline([1.0], 0) == ""


def test_curve_is_bounded_and_keeps_its_shape():
    curve = Curve(0.0)
    for value in range(1, 100_000):
        curve.add(float(value))
    points = curve.points()
    assert len(points) <= 2 * MAX_POINTS
    assert points == sorted(points)
    assert (curve.lowest, curve.before, curve.newest, curve.highest) == (0.0, 99_998.0, 99_999.0, 99_999.0)


def test_metrics_that_a_record_lacks_keep_their_newest_value():
    history = History()
    history.add({"a": 1.0, "b": 2.0})
    history.add({"a": 3.0})
    assert history.names() == ["a", "b"]
    assert [history.get(name).newest for name in ("a", "b")] == [3.0, 2.0]
    assert history.get("c") is None
