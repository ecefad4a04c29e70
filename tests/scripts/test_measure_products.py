"""Timed products: the compressed operand is the dense one, what is counted is there, and a GPU's time is that of its kernels."""

from __future__ import annotations

import measure_products
import pytest
import torch
from measure_products import operands, time_product

from trainyard.errors import BadInput, UnknownName
from trainyard.ir import MatMul
from trainyard.machines.presets.gpus import H200

OP = MatMul(12, 7, 33)


@pytest.mark.oracle
@pytest.mark.parametrize("nonzero", [0.2, 0.5, 1.0])
def test_a_compressed_product_equals_the_dense_one(nonzero: float) -> None:
    made = {
        library: operands(OP, precision="fp32", nonzero=nonzero, library=library, device="cpu", seed=3)
        for library in measure_products.LIBRARIES
    }
    (left, right), (packed, same) = made["dense"], made["csr"]
    assert packed.layout == torch.sparse_csr
    assert torch.equal(packed.to_dense(), left)
    assert torch.equal(right, same)
    assert torch.allclose(packed @ same, left @ right, atol=1e-5)
    assert len(packed.values()) == int((left != 0).sum())


@pytest.mark.unit
def test_the_seed_decides_what_is_multiplied() -> None:
    first, again, other = (
        operands(OP, precision="fp32", nonzero=0.5, library="dense", device="cpu", seed=seed)[0] for seed in (1, 1, 2)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first != 0, other != 0)


@pytest.mark.unit
@pytest.mark.parametrize("library", measure_products.LIBRARIES)
def test_useful_multiplications_are_those_of_non_zeros(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure_products, "LEAST_S", 1e-4)
    op = MatMul(64, 16, 128)
    timed = time_product(op, nonzero=0.25, library=library, device="cpu", repeats=2)
    left, _ = operands(op, precision="fp32", nonzero=0.25, library="dense", device="cpu", seed=0)
    assert timed.nonzero * left.numel() == int((left != 0).sum())
    assert timed.nonzero == pytest.approx(0.25, abs=0.03)
    assert timed.useful_macs == pytest.approx(16 * int((left != 0).sum()))
    assert timed.seconds > 0
    assert timed.efficiency(timed.useful_macs / timed.seconds) == pytest.approx(1.0)
    assert timed.efficiency(2 * timed.useful_macs / timed.seconds) == pytest.approx(0.5)


@pytest.mark.unit
def test_the_best_queue_counts_and_a_call_is_a_part_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = iter([1e-3, 0.030, 0.022, 0.040])  # one call to see how long it takes, then queues of twenty
    calls: list[int] = []
    monkeypatch.setattr(measure_products, "LEAST_S", 0.020)
    monkeypatch.setattr(measure_products, "_queue", lambda work, place, count: (calls.append(count), next(taken))[1])
    assert measure_products._seconds(lambda: None, torch.device("cpu"), 3) == pytest.approx(0.022 / 20)
    assert calls == [1, 20, 20, 20]


@pytest.mark.unit
def test_tf32_is_allowed_for_its_own_products_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []

    def queue(work: object, place: torch.device, count: int) -> float:
        seen.append(torch.backends.cuda.matmul.allow_tf32)
        if len(seen) > 4:
            raise RuntimeError("the device is gone")
        return 1.0

    monkeypatch.setattr(measure_products, "_queue", queue)
    before = torch.backends.cuda.matmul.allow_tf32
    time_product(OP, precision="tf32", device="cpu", repeats=1)
    time_product(OP, precision="fp32", device="cpu", repeats=1)
    assert seen == [True, True, False, False]
    with pytest.raises(RuntimeError):
        time_product(OP, precision="tf32", device="cpu", repeats=1)
    assert torch.backends.cuda.matmul.allow_tf32 == before


@pytest.mark.unit
@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"precision": "fp31"}, UnknownName, "fp32"),
        ({"library": "csc"}, UnknownName, "csr"),
        ({"library": "csr", "precision": "tf32"}, BadInput, "no TF32"),
        ({"nonzero": 0.0}, BadInput, "share above 0"),
        ({"nonzero": 1.5}, BadInput, "at most 1"),
        ({"op": MatMul(4, 4, 4, 3)}, BadInput, "one product"),
        ({"device": "tpu"}, BadInput, "torch knows"),
    ],
)
def test_bad_arguments_of_time_product_raise(options: dict[str, object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        time_product(**{"op": OP, "device": "cpu", **options})  # type: ignore[arg-type]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
def test_a_product_on_a_gpu() -> None:
    op = MatMul(1024, 1024, 1024)
    dense, sparse = (time_product(op, nonzero=share, library=library) for share, library in ((1.0, "dense"), (0.5, "csr")))
    peak = H200.sms * H200.fp32_macs * H200.clock_hz  # the largest board that is known here
    assert 0 < sparse.efficiency(peak) < dense.efficiency(peak) < 1
    left, right = operands(op, precision="fp32", nonzero=0.5, library="csr", device="cuda", seed=0)
    assert torch.allclose(left @ right, left.to_dense() @ right, atol=1e-2)
