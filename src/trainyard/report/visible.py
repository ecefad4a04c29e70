"""Text for a terminal: control characters of names are shown, never obeyed.

A layer, a file, a machine or a study may be named by anyone. An escape sequence in a name could clear a screen, change a title or
type for the user; a sign that turns the direction of writing could hide what is written. All text that is printed goes through
`console` or `visible`, which put a picture in the place of such characters: U+241B for escape, U+FFFD for what has no picture.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment

UNSAFE = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters but the end of a line, those that turn the direction of writing, and halves of surrogate pairs."""
PICTURES, DELETED, UNKNOWN = 0x2400, "\u2421", "\ufffd"
END_OF_LINE = "\u2424"


def visible(text: str) -> str:
    """A text of several lines whose other control characters are pictures of themselves.

    >>> visible("conv\x1b[2J"), visible("caf\xe9 \u202etxt.exe"), visible("a\x7f\x9bb")
    ('conv␛[2J', 'café �txt.exe', 'a␡�b')
    """
    return UNSAFE.sub(lambda match: _picture(match.group()), text)


def one_line(name: str) -> str:
    """A name, whose ends of lines are pictures as well.

    >>> one_line("conv\\nenergy  0 J")
    'conv␤energy  0 J'
    """
    return visible(name).replace("\n", END_OF_LINE)


def _picture(sign: str) -> str:
    code = ord(sign)
    return chr(PICTURES + code) if code < 0x20 else DELETED if code == 0x7F else UNKNOWN


@cache
def _console_class() -> type[Console]:
    from rich.console import Console
    from rich.segment import Segment

    class VisibleConsole(Console):
        """A console whose text has been through `visible`; colours and movements are its own."""

        def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
            for segment in super().render(renderable, options):
                if segment.control is None and UNSAFE.search(segment.text):
                    yield Segment(visible(segment.text), segment.style)
                else:
                    yield segment

    return VisibleConsole


def console(**options: Any) -> Console:
    """What commands print tables and bars on: stdout, or stderr with `stderr=True`."""
    return _console_class()(**options)
