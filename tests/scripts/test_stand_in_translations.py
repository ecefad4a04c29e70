"""The stand-in for WMT: samples by number, a rule that turns one language into the other, padding that no loss sees."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from stand_ins.translations import (
    BEGIN,
    END,
    IGNORED,
    MEAN_WORDS,
    MOVED,
    PADDING,
    TURN,
    WORDS,
    Translations,
)

DATA = Translations(samples=500)


def translated(sentence: list[int], vocabulary: int) -> list[int]:
    """The rule, word by word."""
    words = list(sentence)
    for place in range(0, len(words) - 1, 2):
        if words[place] % MOVED == 0:
            words[place], words[place + 1] = words[place + 1], words[place]
    return [(word - WORDS + TURN) % (vocabulary - WORDS) + WORDS for word in words]


@pytest.mark.oracle
@settings(deadline=None, max_examples=25)
@given(st.integers(0, 10**6), st.integers(3, 13), st.integers(5, 14), st.sampled_from([50, 8000, 36_548]), st.integers(0, 5))
def test_the_target_is_the_source_by_the_rule(
    number: int, source_words: int, target_words: int, vocabulary: int, seed: int
) -> None:
    source_words = max(source_words, 4)
    data = Translations(samples=2_000_000, source_words=source_words, target_words=target_words, vocabulary=vocabulary, seed=seed)
    source, target, following = (tensor[0].tolist() for tensor in data.take(np.array([number])))
    sentence = [word for word in source if word != PADDING]
    said = translated(sentence, vocabulary)
    assert source == sentence + [PADDING] * (source_words - len(sentence))
    assert len(source) == source_words
    assert len(target) == len(following) == target_words
    whole = [BEGIN, *said, END]
    assert target == (whole + [PADDING] * target_words)[:target_words]
    assert following == (whole[1:] + [IGNORED] * target_words)[:target_words]
    assert all(WORDS <= word < vocabulary for word in sentence + said)


@pytest.mark.unit
def test_a_translation_undone_is_the_source_pair_by_pair() -> None:
    source, target, _ = DATA.take(np.arange(200))
    span = DATA.vocabulary - WORDS
    words = target[:, 1:]
    real = words >= WORDS
    undone = torch.where(real, (words - WORDS - TURN) % span + WORDS, PADDING)[:, : source.shape[1]]
    pairs = [tensor.reshape(len(source), -1, 2).sort(2).values for tensor in (source, undone)]
    assert torch.equal(*pairs)
    moved = (source != undone).any(1)
    assert 0.9 < float(moved.float().mean()) <= 1.0, "copying word by word does not do"
    first, second = source[:, 0::2], source[:, 1::2]
    swapped = (undone[:, 0::2] == second) & (first != second) & (second != PADDING)
    assert bool((first[swapped] % MOVED == 0).all())
    assert 0.25 < float(swapped.sum() / (second != PADDING).sum()) < 0.45, "about a third"


@pytest.mark.unit
def test_a_sample_is_the_same_whenever_it_is_asked_for() -> None:
    together, alone = DATA.take(np.array([7, 3, 41])), DATA.take(np.array([3]))
    for many, one in zip(together, alone, strict=True):
        assert torch.equal(many[1], one[0])
    other = replace(DATA, seed=1).take(np.array([3]))
    assert not torch.equal(other[0], alone[0])
    assert DATA.stand_in
    assert DATA.name.startswith("stand-in: ")


@pytest.mark.unit
def test_lengths_are_those_of_sentences() -> None:
    source, target, following = DATA.take(np.arange(500))
    length = (source != PADDING).sum(1)
    assert 4 <= int(length.min()) < int(length.max()) <= 50
    assert float(length.float().mean()) == pytest.approx(MEAN_WORDS, rel=0.06), "cut at 50 words"
    assert torch.equal((following != IGNORED).sum(1), length + 1), "every word and the end"
    assert torch.equal((target != PADDING).sum(1).clamp(max=length.max() + 2), (length + 2).clamp(max=51))
    counts = source[source != PADDING].bincount(minlength=WORDS + 2)
    assert float(counts[WORDS] / counts[WORDS + 1]) == pytest.approx(np.log(2) / np.log(1.5), rel=0.25), "Zipf's law"
