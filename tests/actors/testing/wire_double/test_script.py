"""The JSON of scripts: what is written is read back, and what is wrong is refused with one sentence."""

from __future__ import annotations

import pytest

from callboard.actors.testing.wire_double import Call, Chance, Fault, FaultKind, RawAnswer, Script, Tokens, Turn
from callboard.actors.testing.wire_double.script import scripts_from_json, scripts_to_json
from callboard.protocol.errors import UsageError
from callboard.protocol.model import FinishReason

MOST = '{"share": 0.6, "fault": {"kind": "cut"}}'
SCRIPTS = [
    Script((Turn("hi", (Call("a", {"x": [1, None]}, "id"), Call("b", "{half")), "hm", usage=None),), True, "first"),
    Script((RawAnswer({"a": [1]}, 429, {"retry-after": "1"}), RawAnswer("<p>"), Turn(usage=Tokens(9, 5, 4, 1, 2)))),
    Script((Turn(finish=FinishReason.LENGTH, fragment=9, pause=0.5, fault=Fault(FaultKind.CUT, after=2)),), name="z"),
    Script((Turn("hi"),), chances=(Chance(0.25, Fault(FaultKind.STATUS, status=429)),), seed=7),
]


def test_scripts_are_read_back_as_they_were_written() -> None:
    assert scripts_from_json(scripts_to_json(SCRIPTS)) == SCRIPTS


def test_one_script_needs_no_list_and_names_no_more_than_it_says() -> None:
    assert scripts_from_json('{"turns": [{"text": "Hello"}, {"body": "x"}, {"status": 404}]}') == [
        Script((Turn("Hello"), RawAnswer("x"), RawAnswer(status=404)))
    ]


@pytest.mark.parametrize(
    ("document", "says"),
    [
        ("{", "Invalid JSON"),
        ("3", "Input should be an object"),
        ('{"turns": [3]}', "at turns.0: Input should be an object"),
        ('{"turns": [{"text": 1}]}', "at turns.0.text: Input should be a valid string"),
        ('{"turns": [{"txt": "a"}]}', "at turns.0.txt: Unexpected keyword argument"),
        ('{"turns": [{"calls": [{"arguments": {}}]}]}', "at turns.0.calls.0.name: Field required"),
        ('{"turns": [{"fault": {"kind": "tired"}}]}', "at turns.0.fault.kind: Input should be 'stall'"),
        ('{"turns": [{"fault": {"kind": "cut", "after": -1}}]}', "after must be 0 or more"),
        ('{"turns": [{"fault": {"kind": "status", "status": 200}}]}', "status must be between 400 and 599"),
        ('{"turns": [{"fault": {"kind": "half_call"}}]}', "half_call needs a turn with calls"),
        ('{"turns": [{"body": "", "fault": {"kind": "html"}}]}', "the fault of a raw answer is one of stall"),
        ('{"turns": [{"body": "", "status": 204}]}', "status must be one with a body"),
        ('{"turns": [{"finish": "pause_turn"}]}', "finish must be one of stop"),
        ('{"turns": [{"fragment": 0}]}', "fragment must be 1 or more"),
        ('{"turns": [{"pause": Infinity}]}', "pause must be 0 to 3600"),
        ('{"turns": [{"usage": {"input": 1, "cached": 2}}]}', "input must include cached"),
        ('{"turns": [{"usage": {"output": 1, "reasoning": 2}}]}', "output must include reasoning"),
        ('{"chances": [{"share": 1.5, "fault": {"kind": "cut"}}]}', "share must be between 0 and 1"),
        (
            '{"chances": [{"share": 0.6, "fault": {"kind": "cut"}}, {"share": 0.6, "fault": {"kind": "cut"}}]}',
            "1 at the",
        ),
        ('{"turns": [{"body": ""}], "chances": [{"share": 1, "fault": {"kind": "cut"}}]}', "and no raw answers"),
        ('{"chances": [{"share": 1, "fault": {"kind": "half_call"}}]}', "half_call cannot come at random"),
        ('[{"turns": []}, {"name": "a/b"}]', "at 1: name must be up to 64 letters"),
    ],
)
def test_a_bad_script_is_refused_with_one_sentence(document: str, says: str) -> None:
    with pytest.raises(UsageError) as caught:
        scripts_from_json(document)
    assert says in str(caught.value)
    assert str(caught.value).count("\n") == 0
