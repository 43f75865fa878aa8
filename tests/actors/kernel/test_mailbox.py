"""The mailbox against two plain lists."""

import pytest

from callboard.actors.kernel.mailbox import Mailbox
from callboard.actors.testing.played_kernel import play_mailbox


def test_a_mailbox_is_two_lists() -> None:
    assert [found for seed in range(500) for found in play_mailbox(seed)] == []


def test_no_room_at_all_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one message"):
        Mailbox(0)
