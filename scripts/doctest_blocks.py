"""For the API page: examples in docstrings (`>>> ...` to the next empty line) are shown as code, as every reader expects them."""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, Object

EXAMPLE = re.compile(r"(?m)(?:^[ ]*>>> .*(?:\n(?![ ]*$).*)*)")


def fenced(text: str) -> str:
    """Each run of lines that begins with a prompt, between fences.

    >>> fenced("A sum.\\n\\n>>> 1 + 1\\n2\\n\\nThat is all.").splitlines()[2:6]
    ['```pycon', '>>> 1 + 1', '2', '```']
    """
    return EXAMPLE.sub(lambda found: f"```pycon\n{found[0]}\n```", text)


class DoctestBlocks(Extension):
    """Read by mkdocs.yml."""

    def on_instance(self, *, obj: Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)
