"""Whatever a file or a text holds, a reader answers with a value or with an error of ours that names the file, in few words.

The readers and what they are fed are the table in `readers.py`. `make test` asks 2,000 times, `make test-all` 20,000 times more.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from readers import STEP, TABLE, TAKES_BYTES, Input, damaged, made_up, masks_file, onnx_model
from trainyard.errors import TrainyardError
from trainyard.masks.recorded import Masks
from trainyard.workloads.formats.onnx.model import read_onnx
from trainyard.workloads.named import read_step

QUICK, LONG = 2_000, 20_000
LONGEST_MESSAGE = 1_500


def given(name: str, source: Input, chance: random.Random, folder: Path) -> object:
    """The input: half of the time made of words, where a reader has some, else a whole one that is damaged."""
    by_grammar = source.words and chance.random() < 0.5
    content = made_up(source.words, chance) if by_grammar else damaged(chance.choice(source.wholes()), chance)
    if source.ending:
        path = folder / f"input{source.ending}"
        path.write_bytes(content)
        return path
    return content if name in TAKES_BYTES else content.decode(errors="surrogatepass" if by_grammar else "replace")


def fuzz(count: int, seed: int, folder: Path) -> dict[str, tuple[int, int]]:
    """Asks readers at random, each as often as its weight; counts what each has read and refused."""
    chance = random.Random(seed)
    names, weights = list(TABLE), [source.weight for source in TABLE.values()]
    counts = dict.fromkeys(TABLE, (0, 0))
    for number, name in enumerate(chance.choices(names, weights, k=count)):
        source = TABLE[name]
        content = given(name, source, chance, folder)
        was_read, refused = counts[name]
        try:
            source.ask(content)
            counts[name] = was_read + 1, refused
        except TrainyardError as error:
            counts[name] = was_read, refused + 1
            message = str(error)
            assert len(message) < LONGEST_MESSAGE, f"input {number} of seed {seed}: {name} says too much"
            if source.ending and "store" not in name:
                assert "input" in message, f"input {number} of seed {seed}: {name} does not name the file: {message}"
        except Exception as error:
            shown = content.read_bytes() if isinstance(content, Path) else content
            raise AssertionError(f"input {number} of seed {seed}: {name}({shown!r:.2000})") from error
    return counts


def test_every_reader_answers_2000_damaged_and_made_up_inputs_with_a_value_or_one_line(tmp_path: Path) -> None:
    counts = fuzz(QUICK, 23, tmp_path)
    assert all(refused for _, refused in counts.values()), counts
    assert sum(was_read for was_read, _ in counts.values()) > QUICK // 50  # damage that is never read past tests little


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_every_reader_answers_20000_inputs(tmp_path: Path, seed: int) -> None:
    fuzz(LONG // 4, 100 + seed, tmp_path)


@pytest.mark.parametrize("name", TABLE)
def test_what_is_damaged_was_whole(name: str, tmp_path: Path) -> None:
    """A reader that refuses even the whole input would make its damage worthless."""
    source = TABLE[name]
    for number, whole in enumerate(source.wholes()):
        path = tmp_path / f"whole{number}{source.ending}"
        path.write_bytes(whole)
        source.ask(path if source.ending else whole if name in TAKES_BYTES else whole.decode())


def test_the_model_the_masks_and_the_step_are_what_they_say(tmp_path: Path) -> None:
    for name, content in (("m.onnx", onnx_model()), ("m.safetensors", masks_file()), ("s.json", STEP.to_json().encode())):
        (tmp_path / name).write_bytes(content)
    assert read_onnx(tmp_path / "m.onnx", batch=2).parameters == 54 + 120 + 5
    assert len(Masks.open(tmp_path / "m.safetensors").specs) == 2
    assert read_step(tmp_path / "s.json") == STEP
