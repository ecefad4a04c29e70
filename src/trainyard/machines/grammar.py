"""The machine text `name[(key=value,...)]`: values may be machines, numbers, quantities, tuples, quoted strings.

>>> parse("npu(array=systolic(rows=64,columns=64),dram=75 GB/s)").arguments
(('array', Call(name='systolic', arguments=(('rows', '64'), ('columns', '64')))), ('dram', '75 GB/s'))
>>> split("tpu, npu(order=interleaved,dram=75 GB/s), v100")
['tpu', 'npu(order=interleaved,dram=75 GB/s)', 'v100']
"""

from __future__ import annotations

from dataclasses import dataclass

from trainyard.errors import BadInput
from trainyard.reading import limit, over_limit, reader, require_within

_STOPS = "(),="
SHOWN = 200
"""Characters of a text that an error repeats."""


@dataclass(frozen=True, slots=True)
class Call:
    """A name with arguments in brackets, possibly none."""

    name: str
    arguments: tuple[tuple[str, Term], ...] = ()


Term = Call | str | tuple["Term", ...]


@reader("machine text", source="text")
def parse(text: str) -> Call:
    """One machine, as text."""
    reader = _Reader(text)
    term = reader.value()
    reader.end()
    if isinstance(term, str):
        return Call(term)
    if isinstance(term, tuple):
        raise BadInput(f"machine '{text}' starts with a bracket: write name(key=value,...)")
    return term


@reader("value", source="text")
def parse_value(text: str) -> Term:
    """The right side of `key=value`."""
    reader = _Reader(text)
    term = reader.value()
    reader.end()
    return term


@reader("list of machines", source="text")
def split(text: str) -> list[str]:
    """A list of machines at the commas that stand outside brackets and quotes."""
    pieces, depth, quote, start = [], 0, "", 0
    for column, sign in enumerate(text):
        if quote:
            quote = "" if sign == quote else quote
        elif sign in "\"'":
            quote = sign
        elif sign == "(":
            depth += 1
        elif sign == ")":
            depth -= 1
        elif sign == "," and depth == 0:
            pieces.append(text[start:column].strip())
            start = column + 1
    pieces.append(text[start:].strip())
    if any(not piece for piece in pieces):
        raise BadInput(f"an empty machine name in '{text}'")
    return pieces


class _Reader:
    """Reads one text from left to right."""

    def __init__(self, text: str) -> None:
        require_within("text_length", len(text), "machine text")
        self.text = text
        self.at = self.depth = 0
        self.deepest = limit("text_depth")

    def fail(self, problem: str) -> BadInput:
        near = self.text if len(self.text) <= SHOWN else f"...{self.text[max(0, self.at - SHOWN // 2) : self.at + SHOWN // 2]}..."
        return BadInput(f"machine '{near}', column {self.at + 1}: {problem} (write name(key=value,...))")

    def opened(self) -> int:
        """Where the bracket that opens here stands; it must not stand in too many others."""
        self.depth += 1
        if self.depth > self.deepest:
            raise over_limit("text_depth", f"machine '{self.text[: SHOWN // 2]}...', column {self.at + 1}")
        self.at += 1
        return self.at - 1

    def closed(self) -> None:
        self.depth -= 1
        self.at += 1

    def skip(self) -> str:
        """The next sign that is no space, or ''."""
        while self.at < len(self.text) and self.text[self.at].isspace():
            self.at += 1
        return self.text[self.at : self.at + 1]

    def end(self) -> None:
        if sign := self.skip():
            raise self.fail(f"nothing may follow here, found '{sign}'")

    def atom(self, what: str) -> str:
        start = self.at
        while self.at < len(self.text) and self.text[self.at] not in _STOPS:
            self.at += 1
        word = self.text[start : self.at].strip()
        if not word:
            raise self.fail(f"expected {what}")
        return word

    def value(self) -> Term:
        sign = self.skip()
        if sign in ("'", '"') and sign:
            return self.quoted(sign)
        if sign == "(":
            return self.items()
        name = self.atom("a name or a value")
        return Call(name, self.arguments()) if self.skip() == "(" else name

    def quoted(self, quote: str) -> str:
        end = self.text.find(quote, self.at + 1)
        if end < 0:
            raise self.fail(f"the quote {quote} is not closed")
        word, self.at = self.text[self.at + 1 : end], end + 1
        return word

    def items(self) -> tuple[Term, ...]:
        terms: list[Term] = []
        opened = self.opened()
        while self.skip() != ")":
            terms.append(self.value())
            self.separator(opened)
        self.closed()
        return tuple(terms)

    def arguments(self) -> tuple[tuple[str, Term], ...]:
        terms: dict[str, Term] = {}
        opened = self.opened()
        while self.skip() != ")":
            key = self.atom("a key")
            if self.skip() != "=":
                raise self.fail(f"expected '=' after '{key}'")
            if key in terms:
                raise self.fail(f"'{key}' is given twice")
            self.at += 1
            terms[key] = self.value()
            self.separator(opened)
        self.closed()
        return tuple(terms.items())

    def separator(self, opened: int) -> None:
        sign = self.skip()
        if sign == ",":
            self.at += 1
        elif not sign:
            self.at = opened
            raise self.fail("this bracket is not closed")
        elif sign != ")":
            raise self.fail(f"expected ',' or ')', found '{sign}'")
