"""Where the parts of a plot stand: 640 x 320, of which 56 on the left are for numbers, 150 on the right for the legend, 40 below."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from typing import Any

import pytest

from app.cli.rendering.profile_plots import Line, Plot, plots_of, svg
from cost_models.hardware import document_of

LEFT, RIGHT, TOP, BASE = 56, 640 - 150, 10, 320 - 40
FIT: dict[str, Any] = {
    "op": "all_reduce", "ranks": 4, "ranks_per_node": 4, "size_bytes": [2.0**20, 2.0**24], "time_s": [1e-4, 1e-3],
    "residual_fraction": 0.0,
}  # fmt: skip


def drawn(*lines: Line, x_label: str = "bytes") -> ET.Element:
    return ET.fromstring(svg(Plot("title", x_label, "GB/s", lines)))


def texts(root: ET.Element) -> dict[str, dict[str, str]]:
    """Attributes of the texts, by what they say."""
    return {each.text or "": each.attrib for each in root.iter("text")}


def curve(*points: tuple[float, float]) -> Line:
    return Line("curve", points)


def test_numbers_stand_beside_their_heights() -> None:
    """The axis ends 5 % above the highest point. So 0 is at the base, and 200 of 210 at 1/1.05 of the way up; text is 4 lower."""
    root = drawn(curve((2.0**10, 100.0), (2.0**20, 200.0)))
    height = BASE - TOP
    for text, share in (("0", 0.0), ("100", 0.5), ("200", 1.0)):
        at = texts(root)[text]
        assert float(at["y"]) == pytest.approx(BASE - share / 1.05 * height + 4, abs=0.5)
        assert (float(at["x"]), at["text-anchor"]) == (LEFT - 6, "end")


def test_sizes_stand_below_their_places_and_only_those_within_the_curve() -> None:
    """From 2^10 to 2^20, 2^15 is in the middle."""
    root = drawn(curve((2.0**10, 1.0), (2.0**20, 2.0)))
    found = {text: float(at["x"]) for text, at in texts(root).items() if at.get("y") == str(BASE + 16)}
    assert found == {"1K": LEFT, "32K": (LEFT + RIGHT) // 2, "1M": RIGHT}
    labels = texts(root)
    assert float(labels["bytes"]["x"]) == (LEFT + RIGHT) / 2
    assert float(labels["bytes"]["y"]) == BASE + 34
    assert (labels["GB/s"]["x"], labels["GB/s"]["y"]) == (str(LEFT + 6), "20")
    assert [each.attrib["d"] for each in root.iter("path")] == [f"M{LEFT},{TOP} V{BASE} H{RIGHT}"]


def test_sizes_just_inside_the_ends_are_named_although_the_curve_is_off_by_rounding() -> None:
    """1,028 bytes are within 1 % of 1 KiB; 1,040 are not."""
    assert "1K" in texts(drawn(curve((1028.0, 1.0), (2.0**20, 2.0))))
    assert "1K" not in texts(drawn(curve((1040.0, 1.0), (2.0**20, 2.0))))
    assert "1M" not in texts(drawn(curve((2.0**10, 1.0), (2.0**20 - 4, 2.0))))
    sizes = set(texts(drawn(curve((1.0, 7.0), (2.0**56, 50.0)))))
    assert {"1", "32", "1K", "32K", "1M", "32M", "1G", "32G", "1024G", "32768G"} <= sizes


def test_operations_have_powers_of_ten() -> None:
    """From half of 10^-6 to twice 10^3 there are 9.6 powers, so that one is 434 / 9.6 wide."""
    root = drawn(curve((0.5e-6, 7.0), (2e3, 50.0)), x_label="operations")
    found = {text: float(at["x"]) for text, at in texts(root).items() if at.get("y") == str(BASE + 16)}
    assert list(found) == ["1e-06", "1e-05", "0.0001", "0.001", "0.01", "0.1", "1", "10", "100", "1000"]
    steps = [later - earlier for earlier, later in zip([*found.values()], [*found.values()][1:], strict=False)]
    assert steps == [pytest.approx((RIGHT - LEFT) / 9.602, abs=1)] * 9


def test_powers_of_ten_end_where_no_product_is() -> None:
    """A product has between 10^6 and 10^20 operations."""
    labels = texts(drawn(curve((1e-9, 7.0), (1e12, 50.0)), x_label="operations"))
    powers = [text for text, at in labels.items() if at.get("y") == str(BASE + 16)]
    assert (powers[0], powers[-1], len(powers)) == ("1e-06", "1e+08", 15)


def test_a_cloud_is_drawn_as_dots_a_curve_as_a_line_and_each_named_in_its_colour_below_the_one_before() -> None:
    cloud = Line("cloud & co", ((2.0**10, 50.0), (2.0**20, 105.0), (2.0**15, 0.0)), is_cloud=True)
    root = drawn(cloud, curve((2.0**10, 0.0), (2.0**20, 210.0)))
    dots = [(float(each.attrib["cx"]), float(each.attrib["cy"])) for each in root.iter("circle")]
    assert dots == [
        (LEFT, pytest.approx(BASE - 50 / 220.5 * 270, abs=0.06)), (RIGHT, pytest.approx(BASE - 105 / 220.5 * 270, abs=0.06)),
        ((LEFT + RIGHT) / 2, BASE),
    ]  # fmt: skip
    (line,) = root.iter("polyline")
    (dot, *_) = root.iter("circle")
    first, second = texts(root)["cloud & co"], texts(root)["curve"]
    assert (first["x"], second["x"]) == (str(RIGHT + 12), str(RIGHT + 12))
    assert (first["y"], second["y"]) == ("24", "42")
    assert (first["fill"], second["fill"]) == (dot.attrib["fill"], line.attrib["stroke"])
    assert first["fill"] != second["fill"]
    assert (dot.attrib["r"], line.attrib["stroke-width"]) == ("2.5", "2")
    assert root.attrib["viewBox"] == "0 0 640 320"


def test_the_seventh_curve_has_the_colour_of_the_first() -> None:
    root = drawn(*(Line(f"c{number}", ((2.0**10, 1.0), (2.0**20, 2.0))) for number in range(7)))
    colours = [texts(root)[f"c{number}"]["fill"] for number in range(7)]
    assert colours[6] == colours[0]
    assert len(set(colours[:6])) == 6


def test_a_single_size_stands_at_the_left() -> None:
    (dot,) = drawn(Line("one", ((2.0**20, 5.0),), is_cloud=True)).iter("circle")
    assert dot.attrib["cx"] == f"{LEFT:.1f}"


def fits(*changes: dict[str, Any], gemm: tuple[dict[str, Any], ...] = ()) -> list[Plot]:
    document = {
        "schema_version": 1, "name": "mine", "kind": "measured", "created_at": "2026-11-27",
        "fingerprint": {"gpu": "H100-SXM-80GB", "gpus_per_node": 8, "num_nodes": 4},
        "device": {
            "generation": "hopper", "peak_flops_per_s": {"bf16": 989.4e12}, "memory_bytes_per_s": 3.352e12,
            "link_bytes_per_s": 450e9, "num_sms": 132,
        },
        "collective_fits": [FIT | change for change in changes], "gemm": list(gemm),
    }  # fmt: skip
    return plots_of(document_of(document))


def test_the_four_largest_groups_have_plots_those_with_more_of_a_node_first() -> None:
    groups = [(2, 2), (32, 8), (4, 4), (8, 8), (8, 1), (16, 8)]
    found = fits(*({"ranks": ranks, "ranks_per_node": per_node} for ranks, per_node in groups))
    assert [plot.title for plot in found] == [
        "Collectives of 32 ranks, 8 a node", "Collectives of 16 ranks, 8 a node", "Collectives of 8 ranks, 8 a node",
        "Collectives of 8 ranks, 1 a node",
    ]  # fmt: skip


def test_strided_and_crowded_groups_are_left_out() -> None:
    assert fits({"stride": 2}, {"concurrent_groups": 2}) == []
    (plot,) = fits({"stride": 2}, {}, {"op": "all_gather"}, {"concurrent_groups": 2})
    assert [line.label for line in plot.lines] == ["all_reduce", "all_gather"]
    assert plot.lines[1].points[0] == (2.0**20, pytest.approx(3 / 4 * 2**20 / 1e-4 / 1e9))


def test_products_are_told_apart_by_layout_and_type_and_batched_ones_left_out() -> None:
    """2 x 100 x 200 x 300 operations in 1 us: 12 TFLOP/s."""
    one = {"m": 100, "n": 200, "k": 300, "time_s": 1e-6}
    (plot,) = fits(gemm=(one, one | {"layout": "dgrad"}, one | {"dtype": "fp16"}, one | {"batch": 4}))
    assert [line.label for line in plot.lines] == ["dgrad bf16", "forward bf16", "forward fp16"]
    assert plot.lines[0].points == ((pytest.approx(12e-6), pytest.approx(12.0)),)
    assert fits(gemm=(one | {"batch": 4},)) == []
