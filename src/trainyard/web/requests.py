"""What a visitor may ask for: JSON bodies with every key known and every value bounded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from trainyard.errors import BadInput
from trainyard.reading import reader
from trainyard.web.guard import LONGEST

Text = Annotated[str, StringConstraints(min_length=1, max_length=LONGEST)]
Scalar = bool | int | Annotated[float, Field(allow_inf_nan=False)] | Text | None
Items = Annotated[list[Scalar], Field(max_length=256)]
Value = Scalar | Annotated[list[Scalar | Items], Field(max_length=256)]
_KEYED = r"(traffic_bytes|peak_memory_bytes)\.[\w .-]{1,100}"
Metric = Annotated[str, StringConstraints(pattern=rf"^(time_s|energy_j|samples_per_s|cycles|array_cycles|{_KEYED})$")]
Only = Literal["assumption", "parameter"]
Pairs = Annotated[int, Field(ge=0, le=12)]
LARGEST_BATCH = 2**31 - 1
MOST_SETTINGS = 256


class RunRequest(BaseModel):
    """A step on a machine; `whatif` weighs the machine's assumptions by a metric, `range` gives the time's range over them.

    `at` is the training step of uploaded masks, `inference` the forward pass alone.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    workload: Text
    machine: Text
    batch: Annotated[int, Field(ge=1, le=LARGEST_BATCH)] | None = None
    settings: Annotated[dict[Text, Value], Field(max_length=MOST_SETTINGS)] = {}
    masks: Text | None = None
    at: Annotated[int, Field(ge=0, le=LARGEST_BATCH)] | None = None
    parallel: Literal["data", "model", "mixed"] | None = None
    inference: bool = False
    whatif: bool = False
    metric: Metric = "time_s"
    only: Only | None = None
    pairs: Pairs = 6
    range: bool = False

    @property
    def task(self) -> str:
        return "whatif" if self.whatif else "run"

    def arguments(self) -> dict[str, Any]:
        """Those of a run alone, so that options of `whatif` do not make it another."""
        return self.model_dump(exclude={"whatif", "range"} if self.whatif else {"whatif", "metric", "only", "pairs"})

    def texts(self) -> list[str]:
        """All that may name an upload."""
        return [self.workload, self.machine, *([self.masks] if self.masks else [])]


class PaperRequest(BaseModel):
    """The ledger of a paper, whose uncached experiments run now; or `whatif`: the effect of its assumptions."""

    model_config = ConfigDict(extra="forbid", strict=True)

    paper: Text
    whatif: bool = False
    only: Only | None = None
    pairs: Pairs = 6

    @property
    def task(self) -> str:
        return "paper_whatif" if self.whatif else "paper"

    def arguments(self) -> dict[str, Any]:
        return self.model_dump(exclude={"whatif"}) if self.whatif else {"paper": self.paper}

    def texts(self) -> list[str]:
        return []


@reader("settings", source="texts")
def settings_of(texts: Sequence[str]) -> dict[str, str]:
    """Settings of an address, each as path=value.

    >>> settings_of(["array=tensordash", "dram=75 GB/s"])
    {'array': 'tensordash', 'dram': '75 GB/s'}
    """
    settings = {}
    for text in texts:
        path, equals, value = text.partition("=")
        if not equals or not path.strip():
            raise BadInput(f"set: expected path=value such as dram=75 GB/s, got {text[:100]!r}")
        settings[path.strip()] = value.strip()
    return settings


@reader("request", source="body")
def read(body: bytes) -> RunRequest | PaperRequest:
    """The request of a body; what is wrong with it is one line.

    >>> read(b'{"workload": "resnet50", "machine": "npu", "batch": 0}')
    Traceback (most recent call last):
    trainyard.errors.BadInput: request: batch: Input should be greater than or equal to 1
    """
    from pydantic_core import from_json

    try:
        fields = from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise BadInput(f"request: not JSON: {' '.join(str(error).split())[:200]}") from None
    if not isinstance(fields, dict):
        raise BadInput('request: expected an object such as {"workload": "resnet50", "machine": "npu"}')
    model = PaperRequest if "paper" in fields else RunRequest
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"][:2])
        raise BadInput(f"request: {where[:100]}: {first['msg']}") from None
