"""YFCC100M-HNfc6 in the forms it comes in, and fixed point: written small, read back; a fault names file and line."""

from __future__ import annotations

import bz2
import gzip
import zipfile
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard.errors import BadInput, UnknownName
from trainyard.workloads.datasets.batches import Batches
from trainyard.workloads.datasets.fixed_point import fixed_point, restored
from trainyard.workloads.datasets.yfcc import Yfcc, converted

VALUES = np.random.default_rng(0).normal(-2, 3, (6, 8)).round(3)
TAGGED = ("indoor:0.9", "outdoor:0.7,tree:0.8", "dog:0.6", "indoor:0.9,outdoor:0.6", "cat:0.5,indoor:0.51", "outdoors:0.5")
KEPT, LABELS = [0, 1, 4], [0, 1, 0]  # a dog is neither, one is both, and outdoors is another word


def text(heads: list[str], separator: str = "\t") -> str:
    return "".join(f"{head}\t{separator.join(map(str, row))}\n" for head, row in zip(heads, VALUES, strict=True))


@pytest.fixture
def tagged(tmp_path: Path) -> Path:
    file = tmp_path / "fc6_0_tag"
    file.write_text(text(list(TAGGED)))
    return file


def check(data: Yfcc) -> None:
    values, labels = data.take(np.arange(data.samples))
    assert data.samples == 3
    assert not data.stand_in
    assert labels.tolist() == LABELS
    assert values.dtype == np.float32
    assert np.allclose(values, VALUES[KEPT], atol=1e-6)


class TestText:
    @pytest.mark.parametrize("separator", ["\t", " ", ","])
    @pytest.mark.parametrize("kind", ["", ".gz", ".bz2", ".zip"])
    def test_as_published_with_autotags(self, tmp_path: Path, separator: str, kind: str) -> None:
        content = text([f"{100 + row}\tabcdef" for row in range(6)], separator).encode()
        file = tmp_path / f"features.txt{kind}"
        if kind == ".zip":
            with zipfile.ZipFile(file, "w") as archive:
                archive.writestr("features.txt", content)
        else:
            file.write_bytes({"": bytes, ".gz": gzip.compress, ".bz2": bz2.compress}[kind](content))
        tags = tmp_path / "autotags.bz2"
        tags.write_bytes(bz2.compress("".join(f"{100 + row}\t{tag}\n" for row, tag in enumerate(TAGGED)).encode() + b"7\t\n"))
        check(converted([file], tmp_path / "set", labels=tags, features=8))

    def test_tags_before_the_values(self, tagged: Path, tmp_path: Path) -> None:
        check(converted([tagged], tmp_path / "set", features=8))

    def test_labels_before_the_values_and_without_a_hash(self, tmp_path: Path) -> None:
        rows = VALUES[KEPT]
        (tmp_path / "a.txt").write_text(
            "".join(f"{label} {' '.join(map(str, row))}\n" for label, row in zip(LABELS, rows, strict=True))
        )
        check(converted([tmp_path / "a.txt"], tmp_path / "set", features=8))
        (tmp_path / "b.txt").write_text("".join(f"p{at}\t{','.join(map(str, row))}\n\n" for at, row in enumerate(rows)))
        (tmp_path / "labels").write_text("p2\t0\np0\t0\np1\t1\n")
        check(converted([tmp_path / "b.txt"], tmp_path / "set2", labels=tmp_path / "labels", features=8))

    def test_whole_numbers_as_pim_opt_writes_them(self, tmp_path: Path) -> None:
        (tmp_path / "train_uint32.txt").write_text("1 0 1073741824 2147483648 1\n0 5 6 7 8\n")
        data = converted([tmp_path / "train_uint32.txt"], tmp_path / "set", features=4, fraction=31, number="uint32")
        assert data.words.tolist() == [[0, 1 << 30, 1 << 31, 1], [5, 6, 7, 8]]
        assert data.rows(0, 1)[0].tolist() == [[0.0, 0.5, 1.0, 2.0**-31]]

    def test_several_files_and_other_tags(self, tagged: Path, tmp_path: Path) -> None:
        data = converted([tagged, tagged], tmp_path / "set", features=8, tags=("tree", "dog"))
        assert data.label_of.tolist() == [0, 1, 0, 1]


class TestMatrix:
    def test_it_is_mapped_and_dealt_in_batches(self, tagged: Path, tmp_path: Path) -> None:
        data = converted([tagged], tmp_path / "set", features=8)
        assert isinstance(data.words, np.memmap)
        assert data.matrix.stat().st_size == 3 * 8 * 4
        (features, labels) = Batches(source=data, batch=2).at(0)
        assert features.shape == (2, 8)
        assert set(labels.tolist()) <= {0, 1}
        pieces = list(data.chunks(2))
        assert [len(labels) for _, labels in pieces] == [2, 1]
        assert np.array_equal(np.concatenate([values for values, _ in pieces]), data.rows(0, 3)[0])

    @pytest.mark.parametrize("number", ["float32", "uint32", "int32"])
    def test_normalised_to_the_range_of_the_training_data(self, tagged: Path, tmp_path: Path, number: str) -> None:
        data = converted([tagged], tmp_path / "set", features=8)
        low, high = data.ranges()
        assert np.array_equal(low, data.rows(0, 3)[0].min(0))
        high[3] = low[3]  # as if it never changed
        unit = data.normalised(tmp_path / "unit", low, high, number)
        values, labels = unit.rows(0, 3)
        expected = (VALUES[KEPT] - low) / (high - low + (high == low))
        expected[:, 3] = 0
        assert np.allclose(values, expected.clip(0, 1), atol=1e-6)
        assert labels.tolist() == LABELS
        assert (unit.words.max() == 2**31 - (number == "int32")) == (number != "float32")

    def test_npy_and_labels_in_text(self, tmp_path: Path) -> None:
        np.save(tmp_path / "m.npy", VALUES.astype(np.float32))
        (tmp_path / "l.txt").write_text("0\n1\n1\n0\n0\n1\n")
        data = Yfcc(tmp_path / "m.npy", tmp_path / "l.txt", features=8)
        assert data.take(np.array([2]))[1].tolist() == [1]
        assert np.allclose(data.take(np.array([2]))[0], VALUES[2:3])


class TestFaults:
    @pytest.mark.parametrize(
        ("line", "message"),
        [
            ("0 1 2 3", "line 2: 3 features, expected 4"),
            ("0 1 2 3 4 5", "line 2: 5 features, expected 4"),
            ("0 1 x 3 4", "line 2: feature 1 is 'x', no number"),
            ("1 1 2 nan 4", "line 2: feature 2 is nan, no finite number"),
            ("17 1 2 3 4", "line 2: '17' is neither a label .* need labels="),
        ],
    )
    def test_a_bad_line(self, tmp_path: Path, line: str, message: str) -> None:
        (tmp_path / "rows.txt").write_text(f"0 1 2 3 4\n{line}\n")
        with pytest.raises(BadInput, match=rf"rows.txt, {message}"):
            converted([tmp_path / "rows.txt"], tmp_path / "set", features=4)
        assert not (tmp_path / "set.f32").exists(), "no half a file is left"

    def test_labels_that_are_missing_or_broken(self, tmp_path: Path) -> None:
        (tmp_path / "rows.txt").write_text("8\t1,2\n9\t1,2\n")
        (tmp_path / "tags").write_text("8\tindoor:1\n")
        with pytest.raises(BadInput, match=r"rows.txt, line 2: picture '9' has no line in .*tags"):
            converted([tmp_path / "rows.txt"], tmp_path / "set", labels=tmp_path / "tags", features=2)
        (tmp_path / "tags").write_text("8\tdog:1\n9\n")
        with pytest.raises(BadInput, match=r"tags, line 2: expected an id, a tab"):
            converted([tmp_path / "rows.txt"], tmp_path / "set", labels=tmp_path / "tags", features=2)
        (tmp_path / "tags").write_text("8\tdog:1\n9\t\n")
        with pytest.raises(BadInput, match="no picture has a label"):
            converted([tmp_path / "rows.txt"], tmp_path / "set", labels=tmp_path / "tags", features=2)

    def test_an_archive_cut_short(self, tmp_path: Path) -> None:
        whole = gzip.compress("".join(f"0 {n} 1\n" for n in range(1000)).encode())
        (tmp_path / "rows.gz").write_bytes(whole[: len(whole) // 2])
        with pytest.raises(BadInput, match=r"rows.gz is damaged or ends too early"):
            converted([tmp_path / "rows.gz"], tmp_path / "set", features=2)

    @pytest.mark.probe
    def test_a_matrix_that_does_not_fit(self, tmp_path: Path) -> None:
        matrix, labels = tmp_path / "m.f32", tmp_path / "m.labels"
        matrix.write_bytes(bytes(4 * 8 * 2))
        labels.write_bytes(bytes([0, 1]))
        assert Yfcc(matrix, labels, features=8).samples == 2
        matrix.write_bytes(bytes(4 * 8 * 2 - 1))
        with pytest.raises(BadInput, match="63 bytes, no whole number of rows of 32"):
            Yfcc(matrix, labels, features=8)
        matrix.write_bytes(bytes(4 * 8 * 3))
        with pytest.raises(BadInput, match="2 labels for the 3 rows"):
            Yfcc(matrix, labels, features=8)
        labels.write_bytes(bytes([0, 1, 2]))
        with pytest.raises(BadInput, match="byte 2: a label is 0 or 1, got 2"):
            Yfcc(matrix, labels, features=8)
        with pytest.raises(UnknownName, match="did you mean 'int32'"):
            Yfcc(matrix, labels, features=8, number="int23")
        with pytest.raises(BadInput, match=r"cannot read .*nowhere"):
            Yfcc(tmp_path / "nowhere.f32", labels)
        np.save(tmp_path / "m.npy", VALUES)
        with pytest.raises(BadInput, match=r"float64 of shape \(6, 8\), expected float32"):
            Yfcc(tmp_path / "m.npy", labels, features=8)

    def test_nan_in_a_matrix(self, tmp_path: Path) -> None:
        rows = np.ones((3, 4), np.float32)
        rows[1, 2] = np.nan
        rows.tofile(tmp_path / "m.f32")
        (tmp_path / "m.labels").write_bytes(bytes(3))
        data = Yfcc(tmp_path / "m.f32", tmp_path / "m.labels", features=4)
        data.take(np.array([0, 2]))
        with pytest.raises(BadInput, match=r"m.f32, row 1: feature 2 is nan"):
            data.take(np.array([2, 1]))


class TestFixedPoint:
    @given(st.floats(-1, 1), st.sampled_from([8, 16, 32]), st.integers(0, 30), st.booleans(), st.sampled_from(["down", "nearest"]))
    def test_the_error_is_within_its_bound(self, value: float, bits: int, fraction: int, signed: bool, rounding: str) -> None:
        fraction = min(fraction, bits - 2)
        value = value if signed else abs(value)
        word = int(fixed_point([value], bits, fraction, signed=signed, rounding=rounding)[0])
        error = Fraction(value) - Fraction(word, 1 << fraction)
        if rounding == "down":
            assert 0 <= error < Fraction(1, 1 << fraction)
        else:
            assert abs(error) <= Fraction(1, 2 << fraction)
        assert float(restored(np.array([word]), fraction)[0]) == word / 2**fraction

    def test_as_pim_opt_cuts_off(self) -> None:
        values = np.random.default_rng(1).random(1000)
        assert fixed_point(values).tolist() == [int(value * (1 << 31)) for value in values]
        assert fixed_point(values).dtype == np.uint32

    @pytest.mark.probe
    def test_the_last_that_fits(self) -> None:
        assert fixed_point([127.99], 8, 0, signed=True).tolist() == [127]
        assert fixed_point([-1.0], 32, 31, signed=True).tolist() == [-(2**31)]
        for value in (128.0, -128.1, np.nan, np.inf):
            with pytest.raises(BadInput, match="does not fit a signed word of 8 bits"):
                fixed_point([value], 8, 0, signed=True)
        with pytest.raises(BadInput, match="unsigned"):
            fixed_point([-0.1])
        with pytest.raises(BadInput, match="bits must be one of"):
            fixed_point([0.0], 24)
        with pytest.raises(BadInput, match="fraction must be 0 to 8"):
            fixed_point([0.0], 8, 9)
