"""Stand-ins: named as such, the same sample whenever it is asked for, shaped as the models take it, with something to learn."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from stand_ins import captions, sentences
from stand_ins.captions import Captions
from stand_ins.objects import Objects
from stand_ins.pictures import Pictures
from stand_ins.randomness import integers, lengths, normal, uniform, zipf
from stand_ins.ratings import Ratings
from stand_ins.sentences import CONTRADICTION, ENTAILMENT, NEUTRAL, MaskedPairs, Sentences
from stand_ins.text import Text

from trainyard.errors import BadInput
from trainyard.workloads.datasets.batches import Batches, Part, Source

SOURCES: tuple[Source, ...] = (
    Pictures(samples=50, size=20),
    Objects(samples=50, height=24, width=40, objects=3, raster=8),
    Captions(samples=50, size=16),
    Sentences(samples=50),
    MaskedPairs(samples=50),
    Ratings(samples=50),
    Text(samples=50, sequence=9),
)
BY_NAME = pytest.mark.parametrize("source", SOURCES, ids=lambda source: type(source).__name__)


def split_mix(word: int) -> int:
    """The mixing function in whole numbers."""
    mask = (1 << 64) - 1
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & mask
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & mask
    return word ^ (word >> 31)


@pytest.mark.oracle
@given(st.integers(0, 2**40), st.integers(0, 999), st.integers(0, 2**40), st.integers(0, 300))
def test_random_values_are_the_hash_in_whole_numbers(seed: int, stream: int, sample: int, place: int) -> None:
    mask = (1 << 64) - 1
    word = (sample * 0xD1342543DE82EF95 + place * 0x9E3779B97F4A7C15 + split_mix((seed * 1_000_003 + stream) & mask)) & mask
    value = uniform(seed, stream, torch.tensor([sample]), place + 1)[0, place]
    assert float(value) == (split_mix(word) >> 40) / 2**24


def test_random_values_are_spread_as_they_should_be() -> None:
    numbers = torch.arange(20_000)
    values = uniform(1, 2, numbers, 4)
    assert values.mean(0).sub(0.5).abs().max() < 0.01
    assert torch.corrcoef(values.T).fill_diagonal_(0).abs().max() < 0.03
    bell = normal(1, 2, numbers, 1)[:, 0]
    assert abs(float(bell.mean())) < 0.03
    assert float(bell.std()) == pytest.approx(1, abs=0.03)
    assert integers(values[:, 0], 7).bincount().min() > 2500
    ranks = zipf(values[:, 0], 1000).bincount(minlength=1000)
    assert float(ranks[0] / ranks[1]) == pytest.approx(np.log(2) / np.log(1.5), rel=0.1), "cells of the logarithm"
    drawn = lengths(bell, 14.1, 6.0, 1, 200).float()
    assert float(drawn.mean()) == pytest.approx(14.1, abs=0.3)
    assert float(drawn.std()) == pytest.approx(6.0, abs=0.3)


@BY_NAME
def test_a_sample_depends_on_its_number_alone(source: Source) -> None:
    assert source.stand_in
    assert source.name.startswith("stand-in: ")
    together, alone = source.take(np.array([7, 3, 41])), source.take(np.array([3]))
    for many, one in zip(together, alone, strict=True):
        assert torch.equal(many[1], one[0])
        assert len(many) == 3
    assert any(not torch.equal(tensor[0], tensor[1]) for tensor in together)


@BY_NAME
def test_another_seed_is_other_data(source: Source) -> None:
    from dataclasses import replace

    other = replace(source, seed=1).take(np.arange(8))
    assert any(not torch.equal(a, b) for a, b in zip(source.take(np.arange(8)), other, strict=True))


def test_the_palette_can_be_told_from_a_picture() -> None:
    data = Pictures(samples=600, size=16, classes=10)
    images, labels = data.take(np.arange(600))
    middle = images[:, :, 4:12, 4:12].flatten(1)
    features = torch.cat([middle, middle**2, torch.ones(600, 1)], dim=1)
    wanted = torch.nn.functional.one_hot(labels, 10).float()
    fitted = torch.linalg.lstsq(
        features[:450].T @ features[:450] + 30 * torch.eye(features.shape[1]), features[:450].T @ wanted[:450]
    )
    right = (features[450:] @ fitted.solution).argmax(1) == labels[450:]
    assert float(right.float().mean()) > 0.3, "three times chance, by a linear rule"
    with pytest.raises(BadInput, match="must divide 1000"):
        Pictures(samples=5, classes=30)


def test_objects_lie_in_their_boxes() -> None:
    images, boxes, labels, rasters = Objects(samples=20, height=60, width=80).take(np.arange(20))
    assert images.shape == (20, 3, 60, 80)
    x1, y1, x2, y2 = boxes.unbind(-1)
    assert bool((x2 > x1).all() and (y2 > y1).all())
    assert float(boxes.min()) >= 0
    assert float(x2.max()) <= 80
    assert float(y2.max()) <= 60
    assert 1 <= int(labels.min()) <= int(labels.max()) <= 90
    covered = rasters.mean((-1, -2))
    assert 0.05 < float(covered.min()) < float(covered.max()) < 0.9


def test_captions_name_what_is_seen() -> None:
    _, words, following = Captions(samples=200, size=8).take(np.arange(200))
    real = words != captions.PADDING
    assert bool((words[:, 0] == captions.BEGIN).all())
    assert torch.equal(following[:, :-1] != captions.IGNORED, real[:, 1:])
    assert torch.equal(following[:, :-1][real[:, 1:]], words[:, 1:][real[:, 1:]])
    assert float(real.sum(1).float().mean()) == pytest.approx(12.5, abs=0.5), "with begin and end"
    assert len(words[:, 2].unique()) > 50, "many words for ten palettes"


def test_relations_can_be_told_from_the_words() -> None:
    premise, hypothesis, relation = Sentences(samples=2000).take(np.arange(2000))
    denied = ((hypothesis >= 1) & (hypothesis <= sentences.NEGATIONS)).any(1)
    assert torch.equal(denied, relation == CONTRADICTION)
    repeated = (hypothesis[:, :, None] == premise[:, None]).any(2) | (hypothesis == 0)
    assert bool(repeated[relation == ENTAILMENT].all())
    assert float(repeated.all(1)[relation == NEUTRAL].float().mean()) < 0.05, "only a short one can be all repetition"
    for words, mean in ((premise, 14.1), (hypothesis, 8.3)):
        length = (words > 0).sum(1)
        assert float(length.float().mean()) == pytest.approx(mean, rel=0.04)
        assert torch.equal(words > 0, torch.arange(words.shape[1]) < length[:, None]), "padding follows"


def test_masked_pairs_are_what_bert_takes() -> None:
    tokens, segments, masked, real, words, _ = MaskedPairs(samples=300).take(np.arange(300))
    length = real.sum(1)
    assert torch.equal(real, torch.arange(128) < length[:, None])
    assert torch.equal(tokens > 0, real)
    assert 0.6 < float((~real).float().mean()) < 0.75, "most of a sequence is padding"
    assert bool((tokens[:, 0] == sentences.CLS).all())
    assert bool((tokens.gather(1, length[:, None] - 1) == sentences.SEP).all())
    assert bool((segments <= real).all())
    used = words != sentences.IGNORED
    assert bool((tokens.gather(1, masked)[used] == sentences.MASK).all())
    assert int((tokens == sentences.MASK).sum()) == int(used.sum())
    assert bool((words[used] >= sentences.FIRST_WORD).all())
    assert int(words.max()) < 30_522
    with pytest.raises(BadInput, match="too small"):
        Sentences(samples=5, vocabulary=100)


def test_items_differ_in_how_much_they_are_liked() -> None:
    _, items, liked = Ratings(samples=40_000, users=500, items=40).take(np.arange(40_000))
    shares = torch.stack([liked[items == item].mean() for item in range(40)])
    assert float(shares.std()) > 0.1, "sampling alone would give 0.02"


def test_words_have_preferred_successors() -> None:
    words, following = Text(samples=400, sequence=50, vocabulary=200).take(np.arange(400))
    after = following[words == 0].bincount(minlength=200).float()
    alone = following.flatten().bincount(minlength=200).float()
    assert float((after / after.sum() - alone / alone.sum()).abs().sum()) > 0.5
    assert torch.equal(words[:, 1:], following[:, :-1])


def test_parts_do_not_overlap() -> None:
    data = Ratings(samples=30)
    held_out = Part(source=data, first=20, samples=10)
    assert torch.equal(held_out.take(np.array([0]))[2], data.take(np.array([20]))[2])
    batches = Batches(source=Part(source=data, first=0, samples=20), batch=5)
    assert batches.name.startswith("stand-in: ")
    assert batches.stand_in
    assert sorted(int(i) for step in range(4) for i in batches.numbers(step)) == list(range(20))
    with pytest.raises(BadInput, match="samples 0 to 29, not 11 from number 20 on"):
        Part(source=data, first=20, samples=11)
