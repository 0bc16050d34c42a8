import datetime as dt
import math

import numpy as np
import pytest

from descsim_tools.store.metadata import decode_metadata, encode_metadata

NATIVE = (str, bool, int, float)

ROUND_TRIPS = [
    {},
    {"a": "text", "b": 1, "c": 1.5, "d": True},
    {"list": ["a", "b"], "ints": [1, 2], "bools": [True, False]},
    {"mixed": [1, "a", None], "empty": [], "nested": [[1], [2, [3]]]},
    {"none": None},
    {"object": {"x": {"y": [1, {"z": None}]}}, "empty": {}},
    {"date": dt.date(2020, 2, 29), "time": dt.datetime(2020, 1, 1, 12, 30, 5, 7)},
    {"zone": dt.datetime(2020, 1, 1, tzinfo=dt.UTC)},
    {"dates": [dt.date(2020, 1, 1), {"deep": dt.date(2021, 1, 1)}]},
    {"big": 2**70, "edge": 2**63 - 1, "over": 2**63, "low": -(2**63)},
    {"inf": math.inf},
    {"": "empty key", "chroma:document": "theirs", "chroma:x": 1},
    {"$date": "no date", "obj": {"$date": "x"}, "more": {"$dict": {"$datetime": 1}}},
    {"$gte": 4, "$and": [1], "#document": "x", "a$b": 1, "a#": 2},
    {"unicode": "naïve ☕ 日本語", "nul": "a\x00b", "quote": "\"'\\"},
    {"true": True, "one": 1, "float": 1.0},
]


@pytest.mark.parametrize("metadata", ROUND_TRIPS, ids=lambda m: ",".join(m) or "none")
def test_round_trip(metadata):
    flat = encode_metadata(metadata)
    again = decode_metadata(flat)
    assert again == metadata
    assert {k: type(v) for k, v in again.items()} == {k: type(v) for k, v in metadata.items()}
    for value in flat.values():
        assert isinstance(value, NATIVE) or {type(item) for item in value} <= set(NATIVE)


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (np.int64(3), 3),
        (np.float32(1.5), 1.5),
        (np.bool_(True), True),
        (np.str_("x"), "x"),
        ([np.int64(1), np.int64(2)], [1, 2]),
        ((1, 2), [1, 2]),
        ({"deep": np.float64(0.25)}, {"deep": 0.25}),
    ],
)
def test_numpy_scalars_and_tuples_become_what_they_equal(value, plain):
    again = decode_metadata(encode_metadata({"v": value}))["v"]
    assert again == plain
    assert type(again) is type(plain)


def test_nan_comes_back():
    assert math.isnan(decode_metadata(encode_metadata({"v": math.nan}))["v"])


def test_dates_can_be_filtered_on():
    assert encode_metadata({"d": dt.date(2020, 1, 1)})["d"] == "2020-01-01"


@pytest.mark.parametrize(
    ("metadata", "match"),
    [
        ({1: "a"}, "metadata key 1 is no string"),
        ({"descsim_x": 1}, "is reserved"),
        ({"v": b"bytes"}, "'v' is of type bytes"),
        ({"v": {1: "a"}}, "keys are not all strings"),
        ({"v": [{"w": {1, 2}}]}, r"'v\[0\].w' is of type set"),
        ({"v": "\ud800"}, "no valid Unicode"),
        ({"v": np.array([1])}, "of type ndarray"),
    ],
)
def test_what_json_cannot_hold_is_named(metadata, match):
    with pytest.raises(ValueError, match=match):
        encode_metadata(metadata)


def test_missing_metadata_is_empty():
    assert decode_metadata(None) == {}
