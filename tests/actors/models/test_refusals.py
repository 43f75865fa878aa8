"""What models said of themselves is believed for a while, and of so many models."""

from __future__ import annotations

from callboard.actors.models.refusals import MAX_MODELS, NO_SCHEMA_SECONDS, NO_TOOLS_SECONDS, WINDOW_SECONDS, Refusals


def test_no_tools_is_believed_for_an_hour() -> None:
    refusals = Refusals()
    assert refusals.takes_tools("a/m", 5.0)
    refusals.learn_no_tools("a/m", 10.0)
    assert NO_TOOLS_SECONDS == 3_600
    assert [refusals.takes_tools("a/m", at) for at in (10.0, 3_609.0, 3_610.0)] == [False, False, True]
    assert refusals.takes_tools("a/other", 10.0)


def test_no_schema_is_believed_for_an_hour_and_is_no_word_about_tools() -> None:
    refusals = Refusals()
    assert refusals.takes_schemas("a/m", 5.0)
    refusals.learn_no_schema("a/m", 10.0)
    assert NO_SCHEMA_SECONDS == 3_600
    assert [refusals.takes_schemas("a/m", at) for at in (10.0, 3_609.0, 3_610.0)] == [False, False, True]
    assert refusals.takes_schemas("a/other", 10.0)
    assert refusals.takes_tools("a/m", 10.0)


def test_a_refusal_that_meant_something_else_is_forgotten() -> None:
    refusals = Refusals()
    refusals.forget_no_tools("a/m")
    refusals.learn_no_tools("a/m", 10.0)
    refusals.forget_no_tools("a/m")
    assert refusals.takes_tools("a/m", 11.0)


def test_where_a_refusal_ends_the_request_it_is_not_remembered() -> None:
    refusals = Refusals(remembers_no_tools=False)
    refusals.learn_no_tools("a/m", 10.0)
    assert refusals.takes_tools("a/m", 11.0)


def test_the_newest_window_is_believed_for_a_while() -> None:
    refusals = Refusals()
    assert refusals.window("a/m", 0.0) is None
    refusals.learn_window("a/m", 8_192, 10.0)
    refusals.learn_window("a/m", 4_096, 20.0)
    assert refusals.window("a/m", 20.0) == 4_096
    assert refusals.window("a/m", 20.0 + WINDOW_SECONDS) is None


def test_the_models_remembered_are_bounded_and_the_oldest_goes() -> None:
    refusals = Refusals()
    for number in range(MAX_MODELS + 1):
        refusals.learn_no_tools(f"a/{number}", 10.0)
        refusals.learn_no_tools("a/0", 10.0)  # learned again, it is the newest
        refusals.learn_window(f"a/{number}", 100, 10.0)
    assert not refusals.takes_tools("a/0", 11.0)
    assert refusals.takes_tools("a/1", 11.0)
    assert refusals.window("a/0", 11.0) is None
    assert refusals.window(f"a/{MAX_MODELS}", 11.0) == 100
