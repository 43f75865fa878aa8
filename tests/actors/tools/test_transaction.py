"""The statements of a transaction tool: what they may be, and their way from a child process."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.actors.processes.control import LENGTH, REPLY, Says
from callboard.actors.processes.handle import BrokenFrame, ReplyDecoder
from callboard.actors.tools.transaction import MAX_STATEMENTS, MAX_STATEMENTS_BYTES, Statements
from callboard.protocol.errors import UsageError

values = st.one_of(
    st.none(),
    st.text(max_size=20),
    st.binary(max_size=20),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
)


@given(st.lists(st.tuples(st.text(max_size=20), st.lists(values, max_size=4)), max_size=5))
def test_statements_come_from_a_child_as_they_were_given(statements: list[tuple[str, list[Any]]]) -> None:
    made = Statements()
    for sql, parameters in statements:
        made.execute(sql, parameters)
    body = REPLY.pack(1, Says.STATEMENTS, False) + made.to_json()
    (reply,) = ReplyDecoder().feed(LENGTH.pack(len(body)) + body)
    assert isinstance(reply.result, Statements)
    taken = reply.result.taken()
    assert taken == tuple((sql, tuple(parameters)) for sql, parameters in statements)
    assert [[type(each) for each in parameters] for _, parameters in taken] == [
        [type(each) for each in parameters] for _, parameters in statements
    ]


@given(
    st.binary(max_size=60)
    | st.sampled_from([b"[[1,[]]]", b"{}", b'[["x",[["!"]]]]', b'[["x",[{}]]]', b'[["x"]]', b"[3]"])
)
def test_what_is_no_list_of_statements_is_a_broken_frame(data: bytes) -> None:
    body = REPLY.pack(1, Says.STATEMENTS, False) + data
    try:
        (reply,) = ReplyDecoder().feed(LENGTH.pack(len(body)) + body)
    except BrokenFrame:
        return
    assert isinstance(reply.result, Statements)
    assert Statements.from_json(reply.result.to_json()).taken() == reply.result.taken()


@pytest.mark.parametrize(
    ("sql", "parameters", "told"),
    [
        (1, (), "a statement must be a text, got int"),
        ("x", "abc", "must be a list, one for each ?, got str"),
        ("x", {"a": 1}, "must be a list, one for each ?, got dict"),
        ("x", (float("inf"),), "SQLite cannot store inf"),
        ("x", (-(2**63) - 1,), "SQLite cannot store -9223372036854775809"),
        ("x", ("\ud800",), "SQLite cannot store"),
        ("x", (object(),), "(object)"),
    ],
)
def test_what_sqlite_cannot_store_is_refused_and_changes_nothing(sql: Any, parameters: Any, told: str) -> None:
    made = Statements()
    with pytest.raises(UsageError) as refused:
        made.execute(sql, parameters)
    assert told in str(refused.value)
    assert made.taken() == ()


def test_the_statements_of_a_call_are_bounded() -> None:
    many, large = Statements(), Statements()
    for _ in range(MAX_STATEMENTS):
        many.execute("x")
    with pytest.raises(UsageError, match="at most 1,000 statements"):
        many.execute("x")
    large.execute("x", ("y" * (MAX_STATEMENTS_BYTES - 20),))
    with pytest.raises(UsageError, match="at most 1,000 statements and 1,000,000 bytes"):
        large.execute("x", ("y" * 20,))
    body = large.to_json()
    assert Statements.from_json(body).taken() == large.taken()
