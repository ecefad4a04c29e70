"""Element types of a machine: by role, for one tensor and for a step, and the rates of narrow ones."""

from __future__ import annotations

from typing import Any

import pytest

from trainyard.errors import TrainyardError
from trainyard.ir import Role, Step, TensorSpec
from trainyard.mapping.precision import MacRates, Precision, checked_precision, checked_rates, dtype_of, with_precision

SPECS = (
    TensorSpec((4,), "fp32", role=Role.PARAMETER),
    TensorSpec((4,), "bf16", role=Role.ACTIVATION),
    TensorSpec((4,), "int64", role=Role.PARAMETER),
    TensorSpec((4,), "bool", role=Role.ACTIVATION),
)
# fmt: off
TYPES = [
    (None,                                                  ("fp32", "bf16", "int64", "bool")),
    ("fp16",                                                ("fp16", "fp16", "int64", "bool")),
    (Precision({"parameter": "fp8"}),                       ("fp8", "bf16", "int64", "bool")),
    (Precision({"parameter": "fp8", "activation": "fp64"}), ("fp8", "fp64", "int64", "bool")),
]
# fmt: on


@pytest.mark.parametrize(("precision", "expected"), TYPES)
def test_floating_tensors_take_the_type_of_their_role_and_others_keep_theirs(precision: Any, expected: tuple[str, ...]) -> None:
    step = Step(name="four", batch=1, ops=(), tensors=SPECS)
    assert tuple(dtype_of(spec, precision) for spec in SPECS) == expected
    assert tuple(spec.dtype for spec in with_precision(step, precision).tensors) == expected


def test_a_step_without_a_precision_is_the_same_step() -> None:
    step = Step(name="four", batch=1, ops=(), tensors=SPECS)
    assert with_precision(step, None) is step


def test_a_precision_is_a_value_whatever_the_order_of_its_roles() -> None:
    one, other = ({"parameter": "fp8", "activation": "fp16"}, {"activation": "fp16", "parameter": "fp8"})
    assert Precision(one) == Precision(other) == one
    assert hash(Precision(one)) == hash(Precision(other))
    assert Precision(one) != Precision({"parameter": "fp8"})
    assert Precision(one) != "fp8"
    assert (len(Precision(one)), list(Precision(one))) == (2, ["activation", "parameter"])
    assert repr(Precision({"parameter": "fp8"})) == "Precision({'parameter': 'fp8'})"
    with pytest.raises(KeyError):
        _ = Precision(one)["state"]


def test_precisions_and_rates_that_are_values_already_stay_as_they_are() -> None:
    precision, rates = Precision({"parameter": "fp8"}), MacRates({"fp8": 2})
    assert checked_precision(precision) is precision
    assert checked_precision({"parameter": "fp8"}) == precision
    assert (checked_precision("bf16"), checked_precision(None)) == ("bf16", None)
    assert checked_rates(rates) is rates
    assert checked_rates({"fp8": 2}) == rates


# fmt: off
REFUSED = [
    (checked_precision, "fp7",                 "fp7"),
    (checked_precision, {"weights": "fp16"},   "weights"),
    (checked_precision, {"parameter": "fp7"},  "fp7"),
    (checked_precision, 16,                    "expected an element type such as 'bf16'"),
    (checked_rates,     2,                     "expected products a cycle by element type"),
    (checked_rates,     {"fp8": 0},            "whole number of products a cycle"),
    (checked_rates,     {"fp8": True},         "whole number of products a cycle"),
    (checked_rates,     {"fp8": 1.5},          "whole number of products a cycle"),
    (checked_rates,     {"fp7": 2},            "rates"),
]
# fmt: on


@pytest.mark.parametrize(("check", "value", "message"), REFUSED)
def test_what_names_no_element_type_is_refused(check: Any, value: Any, message: str) -> None:
    with pytest.raises(TrainyardError, match=message):
        check(value)


def test_formats_of_fp8_share_its_rate_unless_they_have_their_own() -> None:
    rates = MacRates({"fp8": 4, "fp8_e5m2": 3, "bf16": 1})
    assert [rates.of(name) for name in ("fp8", "fp8_e4m3", "fp8_e5m2", "bf16", "fp16")] == [4, 4, 3, 1, 1]
    assert rates.of("fp8_e4m3", "fp8_e5m2") == 3
    assert MacRates({}).of("fp8_e4m3") == 1
