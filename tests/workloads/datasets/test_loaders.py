"""The published data sets in the formats they come in: tiny files are written and read back; a fault names file and line."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from trainyard.errors import BadInput, UnknownName
from trainyard.workloads.datasets.batches import Batches
from trainyard.workloads.datasets.coco import IGNORED, CocoCaptions, CocoObjects
from trainyard.workloads.datasets.glue import Glue
from trainyard.workloads.datasets.imagenet import ImageNet
from trainyard.workloads.datasets.movielens import MovieLens
from trainyard.workloads.datasets.snli import Snli
from trainyard.workloads.datasets.wikitext import WikiText
from trainyard.workloads.datasets.words import Vocabulary, padded

EVERY = np.arange(2)


def picture(file: Path, colour: tuple[int, int, int], size: tuple[int, int] = (40, 30)) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).save(file)


class TestImageNet:
    @pytest.fixture
    def root(self, tmp_path: Path) -> Path:
        for name, colour in (("n02", (255, 0, 0)), ("n01", (0, 0, 255))):
            picture(tmp_path / "train" / name / f"{name}_1.JPEG", colour)
        return tmp_path

    def test_class_folders(self, root: Path) -> None:
        data = ImageNet(root, size=16)
        images, labels = data.take(EVERY)
        assert (data.samples, data.stand_in, data.classes) == (2, False, ("n01", "n02"))
        assert images.shape == (2, 3, 16, 16)
        assert images.dtype == np.float32
        assert labels.tolist() == [0, 1]
        assert images[0, 2].mean() > 2 > images[0, 0].mean(), "the first class is blue"

    def test_the_middle_of_a_long_picture(self, root: Path) -> None:
        wide = Image.new("RGB", (90, 30))
        wide.paste((255, 255, 255), (30, 0, 60, 30))
        wide.save(root / "train" / "n01" / "n01_0.JPEG", quality=95)
        images, _ = ImageNet(root, size=16).take(np.array([0]))
        assert images[0, :, 8, 8].min() > 2
        assert images.max() - images.min() < 2.6, "black sides are cut off"

    @pytest.mark.parametrize("form", ["solution", "truth"])
    def test_validation_as_published(self, root: Path, form: str) -> None:
        for number, colour in ((1, (0, 0, 255)), (2, (255, 0, 0))):
            picture(root / "val" / f"ILSVRC2012_val_0000000{number}.JPEG", colour)
        if form == "solution":
            (root / "LOC_val_solution.csv").write_text(
                "ImageId,PredictionString\nILSVRC2012_val_00000002,n02 1 2 3 4\nILSVRC2012_val_00000001,n01 1 2 3 4 \n"
            )
        else:
            (root / "ILSVRC2012_validation_ground_truth.txt").write_text("7\n3\n")
            (root / "map_clsloc.txt").write_text("n02 3 fox\nn01 7 eel\n")
        assert ImageNet(root, "val", size=8).take(EVERY)[1].tolist() == [0, 1]

    def test_faults(self, root: Path, tmp_path: Path) -> None:
        with pytest.raises(UnknownName, match=r"did you mean 'val'"):
            ImageNet(root, "vall")
        with pytest.raises(BadInput, match=r"no folder .*nothing is downloaded"):
            ImageNet(tmp_path / "nowhere")
        picture(root / "val" / "ILSVRC2012_val_00000001.JPEG", (0, 0, 0))
        with pytest.raises(BadInput, match=r"neither class folders nor LOC_val_solution.csv"):
            ImageNet(root, "val")
        (root / "map_clsloc.txt").write_text("n02 3 fox\n")
        (root / "ILSVRC2012_validation_ground_truth.txt").write_text("4\n")
        with pytest.raises(BadInput, match=r"ground_truth.txt, line 1: a class number"):
            ImageNet(root, "val")
        (root / "ILSVRC2012_validation_ground_truth.txt").write_text("3\n3\n")
        with pytest.raises(BadInput, match=r"2 lines for 1 pictures"):
            ImageNet(root, "val")
        broken = root / "train" / "n01" / "n01_1.JPEG"
        broken.write_bytes(broken.read_bytes()[:200])
        with pytest.raises(BadInput, match=r"n01_1.JPEG cannot be read"):
            ImageNet(root).take(EVERY)


class TestCoco:
    @pytest.fixture
    def images(self, tmp_path: Path) -> Path:
        picture(tmp_path / "images" / "a.jpg", (255, 0, 0), (40, 20))
        picture(tmp_path / "images" / "b.jpg", (0, 255, 0), (20, 20))
        return tmp_path / "images"

    def annotations(self, tmp_path: Path, rows: list[dict]) -> Path:
        file = tmp_path / "annotations.json"
        listed = [{"id": 1, "file_name": "a.jpg"}, {"id": 2, "file_name": "b.jpg"}]
        file.write_text(json.dumps({"images": listed, "annotations": rows}))
        return file

    def test_captions(self, images: Path, tmp_path: Path) -> None:
        rows = [{"id": 1, "image_id": 2, "caption": "A green thing."}, {"id": 2, "image_id": 1, "caption": "A red red thing"}]
        data = CocoCaptions(images, self.annotations(tmp_path, rows), size=8, words=6)
        pictures, words, following = data.take(EVERY)
        vocabulary = data.vocabulary.words
        assert [vocabulary[w] for w in words[0]] == ["<begin>", "a", "green", "thing", ".", "<end>"]
        assert [vocabulary[w] for w in following[1, :5]] == ["a", "red", "red", "thing", "<end>"]
        assert following[1, 5] == IGNORED
        assert pictures[0, 1].mean() > pictures[0, 0].mean(), "the first caption is of the green picture"

    def test_objects(self, images: Path, tmp_path: Path) -> None:
        triangle = [[10.0, 5.0, 30.0, 5.0, 10.0, 15.0]]
        rows = [
            {"id": 1, "image_id": 1, "bbox": [10, 5, 20, 10], "category_id": 18, "segmentation": triangle, "iscrowd": 0},
            {"id": 2, "image_id": 1, "bbox": [0, 0, 4, 4], "category_id": 3, "segmentation": [[0, 0, 4, 0, 4, 4, 0, 4]]},
            {"id": 3, "image_id": 2, "bbox": [0, 0, 4, 4], "category_id": 3, "segmentation": {"counts": [1]}, "iscrowd": 1},
        ]
        data = CocoObjects(images, self.annotations(tmp_path, rows), height=40, width=60, objects=3, raster=20)
        assert data.samples == 1, "the picture with a crowd alone is left out"
        pictures, boxes, labels, rasters = data.take(np.array([0]))
        assert labels[0].tolist() == [18, 3, 18], "largest first, repeated"
        assert np.allclose(boxes[0, 0], [15, 7.5, 45, 22.5]), "scaled by 1.5"
        assert pictures[0, :, 31:].max() == pictures[0, :, 31:].min() == 0
        assert rasters[0, 0, 2, 2] == 1
        assert rasters[0, 0, 17, 17] == 0
        assert rasters[0, 0].mean() == pytest.approx(0.5, abs=0.06)
        assert rasters[0, 1].all()

    def test_faults(self, images: Path, tmp_path: Path) -> None:
        file = tmp_path / "broken.json"
        file.write_text('{"images": [],\n "annotations": [}')
        with pytest.raises(BadInput, match=r"broken.json, line 2: no JSON"):
            CocoCaptions(images, file)
        file.write_text("{}")
        with pytest.raises(BadInput, match=r"no 'images' and 'annotations'"):
            CocoCaptions(images, file)
        with pytest.raises(BadInput, match=r"annotation 0 \(id 5\) has no 'caption'"):
            CocoCaptions(images, self.annotations(tmp_path, [{"id": 5, "image_id": 1}]))
        with pytest.raises(BadInput, match=r"image 9, which is not in 'images'"):
            CocoCaptions(images, self.annotations(tmp_path, [{"id": 5, "image_id": 9, "caption": ""}]))


class TestGlue:
    def test_pairs_and_their_padding(self, tmp_path: Path) -> None:
        head = "index\tsentence1\tsentence2\tlabel1\tgold_label\n"
        (tmp_path / "MNLI").mkdir()
        (tmp_path / "MNLI" / "train.tsv").write_text(
            head + '0\tThe "cat sleeps.\tA cat\tneutral\tneutral\n1\tNo\tYes\tx\tcontradiction\n'
        )
        (tmp_path / "MNLI" / "dev_matched.tsv").write_text(head + "0\tThe dog sleeps.\tA cat\tx\tentailment\n")
        data = Glue(tmp_path, "MNLI", sequence=12)
        tokens, segments, real, labels = data.take(EVERY)
        words = data.vocabulary.words
        assert [words[t] for t in tokens[0]] == [
            "<begin>",
            "the",
            '"',
            "cat",
            "sleeps",
            ".",
            "<sep>",
            "a",
            "cat",
            "<sep>",
            "<pad>",
            "<pad>",
        ]
        assert segments[0].tolist() == [0] * 7 + [1] * 3 + [0] * 2
        assert real.sum(1).tolist() == [10, 5]
        assert labels.tolist() == [2, 1]
        dev = Glue(tmp_path, "MNLI", "dev_matched", sequence=12, vocabulary=data.vocabulary)
        assert words[dev.take(np.array([0]))[0][0, 2]] == "<unk>", "dog is not in the training file"

    def test_long_pairs_are_cut(self, tmp_path: Path) -> None:
        (tmp_path / "train.tsv").write_text(f"sentence1\tsentence2\tlabel\n{'a ' * 50}\tb b b\tentailment\n")
        _, segments, real, _ = Glue(tmp_path, "RTE", sequence=16).take(np.array([0]))
        assert real.all()
        assert segments.sum() == 4, "the short sentence keeps its words"

    @pytest.mark.parametrize(
        ("task", "text", "sentences", "labels"),
        [
            ("CoLA", "x\t0\t*\tThey drank.\nx\t1\t\tThey slept.\n", 2, [0, 1]),
            ("SST-2", "sentence\tlabel\nfine\t1\n", 1, [1]),
            ("STS-B", "index\tsentence1\tsentence2\tscore\n0\ta\tb\t2.5\n", 1, [2.5]),
            ("QQP", "id\tquestion1\tquestion2\tis_duplicate\n1\ta\tb\t1\n2\tbroken\n3\tc\td\t0\n", 2, [1, 0]),
        ],
    )
    def test_tasks(self, tmp_path: Path, task: str, text: str, sentences: int, labels: list) -> None:
        (tmp_path / "train.tsv").write_text(text)
        data = Glue(tmp_path, task, sequence=8)
        assert data.samples == sentences
        assert data.labels.tolist() == labels

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("sentence\tlabel\nfine\t1\nbad\t2\n", r"train.tsv, line 3: label '2' is none of 0, 1"),
            ("sentence\tlabel\nfine\n", r"train.tsv, line 2: 1 fields"),
            ("text\tlabel\nfine\t1\n", r"train.tsv, line 1: no column 'sentence'"),
            ("sentence\tlabel\n", "no sentences"),
        ],
    )
    def test_faults(self, tmp_path: Path, text: str, said: str) -> None:
        (tmp_path / "train.tsv").write_text(text)
        with pytest.raises(BadInput, match=said):
            Glue(tmp_path, "SST-2")
        with pytest.raises(UnknownName, match=r"did you mean 'SST-2'"):
            Glue(tmp_path, "SST2")


class TestSnli:
    ROWS = (("neutral", "A man sits.", "He waits"), ("-", "x", "y"), ("entailment", "A man sits.", "A man"))

    def written(self, folder: Path, form: str) -> Path:
        if form == "txt":
            file = folder / "snli_1.0_train.txt"
            file.write_text("gold_label\tp\tsentence1\tsentence2\n" + "".join(f"{g}\t\t{a}\t{b}\n" for g, a, b in self.ROWS))
            return file
        text = "".join(json.dumps({"gold_label": g, "sentence1": a, "sentence2": b}) + "\n" for g, a, b in self.ROWS)
        if form == "jsonl":
            file = folder / "snli_1.0_train.jsonl"
            file.write_text(text)
            return file
        with zipfile.ZipFile(folder / "snli_1.0.zip", "w") as archive:
            archive.writestr("snli_1.0/snli_1.0_train.jsonl", text)
            archive.writestr("__MACOSX/snli_1.0/._snli_1.0_train.jsonl", "junk")
        return folder / "snli_1.0.zip"

    @pytest.mark.parametrize("form", ["jsonl", "txt", "zip"])
    def test_every_form(self, tmp_path: Path, form: str) -> None:
        data = Snli(self.written(tmp_path, form), premise_words=5, hypothesis_words=3)
        premise, hypothesis, labels = data.take(EVERY)
        words = data.vocabulary.words
        assert [words[w] for w in premise[0]] == ["a", "man", "sits", ".", "<pad>"]
        assert [words[w] for w in hypothesis[1]] == ["a", "man", "<pad>"]
        assert labels.tolist() == [2, 0]

    def test_faults(self, tmp_path: Path) -> None:
        file = tmp_path / "x.jsonl"
        file.write_text('{"gold_label": "neutral", "sentence1": "a", "sentence2": "b"}\n{"gold_label": "neutral"}\n')
        with pytest.raises(BadInput, match=r"x.jsonl, line 2: no object with"):
            Snli(file)
        file.write_text('{"gold_label": "maybe", "sentence1": "a", "sentence2": "b"}\n')
        with pytest.raises(BadInput, match=r"x.jsonl, line 1: label 'maybe'"):
            Snli(file)
        with pytest.raises(BadInput, match=r"neither .jsonl nor .txt"):
            Snli(tmp_path / "x.csv")
        with pytest.raises(BadInput, match=r"cannot read"):
            Snli(tmp_path / "none.txt")


class TestMovieLens:
    TEXT = "userId,movieId,rating,timestamp\n7,300,4.0,1\n7,20,3.5,2\n9,300,5.0,3\n"

    @pytest.mark.parametrize("packed", [False, True])
    def test_ratings(self, tmp_path: Path, packed: bool) -> None:
        file = tmp_path / ("ml-20m.zip" if packed else "ratings.csv")
        if packed:
            with zipfile.ZipFile(file, "w") as archive:
                archive.writestr("ml-20m/ratings.csv", self.TEXT)
                archive.writestr("ml-20m/movies.csv", "")
        else:
            file.write_text(self.TEXT)
        data = MovieLens(file)
        users, items, liked = data.take(np.arange(3))
        assert (data.samples, data.users, data.items) == (3, 2, 2)
        assert users.tolist() == [0, 0, 1]
        assert items.tolist() == [1, 0, 1]
        assert liked.tolist() == [1.0, 0.0, 1.0]

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("user,film\n", "line 1: expected userId,movieId,rating"),
            (TEXT + "9,x,5.0,3\n", r"line 5: '9,x,5.0,3' is no rating"),
            (TEXT + "9,4\n", "line 5: 2 fields"),
            ("userId,movieId,rating,timestamp\n", "no ratings"),
        ],
    )
    def test_faults(self, tmp_path: Path, text: str, said: str) -> None:
        (tmp_path / "ratings.csv").write_text(text)
        with pytest.raises(BadInput, match=said):
            MovieLens(tmp_path / "ratings.csv")


class TestWikiText:
    @pytest.mark.parametrize("packed", [False, True])
    def test_sequences(self, tmp_path: Path, packed: bool) -> None:
        texts = {"wiki.train.tokens": " \n = Title = \n the cat <unk> \n", "wiki.valid.tokens": "the dog sat there \n"}
        root = tmp_path
        if packed:
            root = tmp_path / "wikitext-2-v1.zip"
            with zipfile.ZipFile(root, "w") as archive:
                for name, text in texts.items():
                    archive.writestr(f"wikitext-2/{name}", text)
        else:
            for name, text in texts.items():
                (tmp_path / name).write_text(text)
        data = WikiText(root, sequence=4)
        words, following = data.take(EVERY)
        assert [data.vocabulary[w] for w in words[0]] == ["<eos>", "=", "Title", "="]
        assert [data.vocabulary[w] for w in following[0]] == ["=", "Title", "=", "<eos>"]
        assert words[1, 0] == following[0, -1]
        valid = WikiText(root, "valid", sequence=2)
        assert [valid.vocabulary[w] for w in valid.take(EVERY)[0].flatten()] == ["the", "<unk>", "<unk>", "<unk>"]

    def test_faults(self, tmp_path: Path) -> None:
        with pytest.raises(BadInput, match=r"cannot read .*wiki.train.tokens"):
            WikiText(tmp_path)
        (tmp_path / "wiki.train.tokens").write_text("a b\n")
        with pytest.raises(BadInput, match=r"3 words, too few"):
            WikiText(tmp_path)
        (tmp_path / "wiki.valid.tokens").write_text("a c d\n")
        with pytest.raises(BadInput, match=r"words that wiki.train.tokens has not"):
            WikiText(tmp_path, "valid", sequence=2)
        (tmp_path / "bad.zip").write_bytes(b"PK no archive")
        with pytest.raises(BadInput, match=r"not a whole .zip"):
            WikiText(tmp_path / "bad.zip")
        (tmp_path / "wiki.train.tokens").write_bytes(b"\xff\xfe")
        with pytest.raises(BadInput, match=r"not UTF-8"):
            WikiText(tmp_path)


def test_words_and_batches_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "train.tsv").write_text("sentence\tlabel\n" + "".join(f"w{i}\t{i % 2}\n" for i in range(7)))
    batches = Batches(source=Glue(tmp_path, "SST-2", sequence=4), batch=3, seed=5)
    assert (batches.steps_per_epoch, batches.stand_in) == (2, False)
    first = [t.tolist() for t in batches.at(0)]
    assert first == [t.tolist() for t in next(iter(batches))]
    seen = {tuple(row) for tensors in batches for row in tensors[0].tolist()}
    assert len(seen) == 6
    assert batches.at(2)[0].tolist() != first[0], "a new epoch has a new order"
    with pytest.raises(BadInput, match=r"7 samples, fewer than a batch of 8"):
        Batches(source=batches.source, batch=8)


def test_a_vocabulary_without_room_is_refused() -> None:
    with pytest.raises(BadInput, match=r"no room"):
        Vocabulary.built([["a"]], size=5)
    assert padded([[1, 2, 3], []], 2).tolist() == [[1, 2], [0, 0]]
