"""Parts check what they are given; values that were accepted before are not checked again, and nothing else is let through."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import trainyard as ty
from trainyard.construction import _converted_arguments, arguments, settable
from trainyard.devices import Accelerator
from trainyard.errors import TrainyardError

NPU: Accelerator = ty.machine("npu")
VALUES: list[Any] = [
    0, 1, 2, -1, True, False, None, 0.0, -0.0, 1.0, 0.5, 2.0, math.inf, math.nan, 2**53 + 1, 10**400, "1", "8 MiB", "1 GHz", "hbm2",
    "all", "", (1, 2, 3), {"fp8": 2}, [1],
]  # fmt: skip


def outcome(call: Any) -> object:
    """What is returned, with its types, or the words of the refusal."""
    try:
        return {name: (type(value), repr(value)) for name, value in call().items()}
    except (TrainyardError, OverflowError) as refused:
        return type(refused), str(refused)


@given(
    changes=st.lists(
        st.dictionaries(st.sampled_from([*settable(Accelerator), "dram", "clock", "unknown"]), st.sampled_from(VALUES), max_size=3),
        min_size=1,
        max_size=4,
    )
)
def test_a_value_is_converted_and_refused_as_without_a_memory_of_earlier_ones(changes: list[dict[str, Any]]) -> None:
    whole = {name: getattr(NPU, name) for name in settable(Accelerator)}
    for change in changes:
        for values in ({**whole, **change}, change):
            assert outcome(lambda values=values: arguments(Accelerator, values)) == outcome(
                lambda values=values: _converted_arguments(Accelerator, values)
            )


@pytest.mark.probe
@pytest.mark.parametrize("banks", [True, 1.0, "1"])
def test_equal_values_of_other_types_are_refused_after_a_number_was_accepted(banks: object) -> None:
    assert replace(NPU, scratchpad_banks=1).scratchpad_banks == 1
    with pytest.raises(TrainyardError, match="scratchpad_banks must be a positive whole number"):
        replace(NPU, scratchpad_banks=banks)
