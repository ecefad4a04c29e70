from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard.errors import BadInput
from trainyard.machines.grammar import Call, Term, parse, parse_value, split

NAMES = st.from_regex(r"[a-z][a-z0-9_-]{0,7}", fullmatch=True)
ATOMS = st.one_of(NAMES, st.sampled_from(["64", "75 GB/s", "8 MiB", "1.05 GHz", "true", "none", "a/b.toml"]))
TERMS: st.SearchStrategy[Term] = st.recursive(
    ATOMS,
    lambda inner: st.one_of(
        st.builds(Call, NAMES, st.dictionaries(NAMES, inner, max_size=3).map(lambda d: tuple(d.items()))),
        st.lists(inner, max_size=3).map(tuple),
    ),
    max_leaves=8,
)


def written(term: Term) -> str:
    if isinstance(term, Call):
        return f"{term.name}({', '.join(f'{key}={written(value)}' for key, value in term.arguments)})"
    if isinstance(term, tuple):
        return f"({','.join(map(written, term))})"
    return term


@given(TERMS)
def test_what_is_written_is_read(term: Term) -> None:
    assert parse_value(written(term)) == term


@given(st.lists(TERMS.filter(lambda term: not isinstance(term, tuple)), min_size=1, max_size=4))
def test_split_stops_at_outer_commas_only(terms: list[Term]) -> None:
    texts = [written(term) for term in terms]
    assert split(" , ".join(texts)) == texts


def test_nested_machine() -> None:
    call = parse("mcdla-b(device=npu(array=tensordash,order=interleaved))")
    assert call == Call("mcdla-b", (("device", Call("npu", (("array", "tensordash"), ("order", "interleaved")))),))


def test_quotes_hold_signs_that_would_split() -> None:
    assert parse("npu(name='a,b(c)=d')").arguments == (("name", "a,b(c)=d"),)
    assert split("npu(name='a,b'),tpu") == ["npu(name='a,b')", "tpu"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("npu(dram=75 GB/s", "not closed"),
        ("npu)", "nothing may follow"),
        ("npu(dram)", "expected '=' after 'dram'"),
        ("npu(=4)", "expected a key"),
        ("npu(dram=)", "expected a name or a value"),
        ("npu(dram=1,dram=2)", "'dram' is given twice"),
        ("npu(a='x)", "not closed"),
        ("npu(a=b=c)", "expected ',' or ')'"),
        ("(64,64)", "starts with a bracket"),
        ("", "expected a name"),
    ],
)
def test_faults_name_the_place(text: str, says: str) -> None:
    with pytest.raises(BadInput) as caught:
        parse(text)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_split_refuses_an_empty_name() -> None:
    with pytest.raises(BadInput, match="empty machine name"):
        split("tpu,,npu")
