"""What is kept of the output of a command."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from callboard.actors.builtins.command_output import HeadAndTail

KEY = b"sk-ant-api03-" + b"a1B2c3D4" * 10


@example([b"\x80" * 40], 4, 4)
@given(st.lists(st.binary(max_size=40), max_size=20), st.integers(4, 30), st.integers(4, 30))
def test_beginning_and_end_are_kept_and_the_rest_is_counted(pieces: list[bytes], head: int, tail: int) -> None:
    kept = HeadAndTail(head, tail)
    for piece in pieces:
        kept.add(piece)
    whole = b"".join(pieces)
    shown = kept.text()
    assert kept.total == len(whole)
    if len(whole) <= head + tail:
        assert kept.left_out == 0
    else:
        first, _, last = shown.partition(f"\n[... {kept.left_out:,} bytes are left out ...]\n")
        assert 0 < kept.left_out <= len(whole) - head - tail + 6
        assert whole.decode("utf-8", "backslashreplace").startswith(first) or "\\x" in first
        assert whole.decode("utf-8", "backslashreplace").endswith(last) or "\\x" in last


@given(st.text(alphabet="aä€𝄞", min_size=100, max_size=300))
def test_no_character_is_cut(text: str) -> None:
    kept = HeadAndTail(50, 50)
    kept.add(text.encode())
    assert "\\x" not in kept.text()


@given(st.integers(0, 150), st.integers(1, 60))
def test_a_key_is_masked_wherever_the_cut_is(before: int, piece: int) -> None:
    kept = HeadAndTail(80, 80)
    data = b"x " * before + KEY + b" x" * 200
    for start in range(0, len(data), piece):
        kept.add(data[start : start + piece])
    assert b"a1B2c3D4" not in kept.text().encode()


def test_memory_is_bounded() -> None:
    kept = HeadAndTail()
    for _ in range(200):
        kept.add(b"x" * 65_536)
    assert kept.total == 200 * 65_536
    assert len(kept._head) + len(kept._tail) < 500_000
