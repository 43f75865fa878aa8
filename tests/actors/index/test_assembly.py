"""What the model reads: exact bytes, never over the budget, stitched, without duplicates, spread over files."""

import os
from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples

from callboard.actors.index import CodeIndex, assemble, assembly
from callboard.actors.index.token_count import count_tokens
from callboard.actors.processes.spawning import Helper
from callboard.protocol.code_fences import AssembledContext, CodeFence, parse_fences
from callboard.protocol.errors import UsageError
from callboard.protocol.masking import has_mask, mask_bytes

QUERY = "how does the client retry a request"


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("work")
    body = "".join(f"    retry_request_step_{n}(client, 'ünïcødé \\\\ \"quoted\"')\n" for n in range(40))
    for number in range(6):
        functions = "\n\n".join(f"def retry_request_{k}(client):\n    '''Retry {number}.'''\n{body}" for k in range(4))
        (folder / f"client{number}.py").write_text(functions)
    (folder / "copy.py").write_text((folder / "client0.py").read_text())
    (folder / "latin.py").write_bytes(b"# caf\xe9 client\ndef retry_latin(): return 'caf\xe9'\n")
    return folder


@pytest.fixture(scope="module")
def index(workspace: Path) -> Iterator[CodeIndex]:
    with CodeIndex.open(workspace, embedder=None) as opened:
        opened.refresh()
        yield opened


def spans(context: AssembledContext) -> list[CodeFence]:
    found = [fence for item in context.context for fence in parse_fences(item.snippet)]
    assert all(isinstance(fence, CodeFence) for fence in found)
    return [fence for fence in found if isinstance(fence, CodeFence)]


@given(st.integers(60, 30_000))
@settings(max_examples=examples(40), deadline=None)
def test_the_json_never_exceeds_the_budget_and_is_exact(index: CodeIndex, budget: int) -> None:
    context = assemble(index, QUERY, budget)
    assert count_tokens([orjson.dumps(context.as_json()).decode()])[0] <= budget
    for item, fence in zip(context.context, spans(context), strict=True):
        content = Path(fence.path).read_bytes()
        encoding = "latin-1" if fence.path.endswith("latin.py") else "utf-8"
        assert content[fence.start_byte : fence.end_byte].decode(encoding) == fence.code
        first, last = map(int, item.lines.split("-"))
        assert content[: fence.start_byte].count(b"\n") + 1 == first
        assert first + fence.code.rstrip("\n").count("\n") == last


def questions_to_helpers(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """From now on: each is a round trip to a process."""
    asked: list[bytes] = []
    ask = Helper.ask

    def heard(helper: Helper, question: bytes, seconds: float) -> bytes:
        asked.append(question)
        return ask(helper, question, seconds)

    monkeypatch.setattr(Helper, "ask", heard)
    return asked


@pytest.mark.parametrize(("budget", "most"), [(80, 3), (400, 3), (4_000, 2), (30_000, 2)])
def test_a_context_takes_two_round_trips_to_what_counts_tokens_and_one_that_has_to_be_cut_three(
    index: CodeIndex, budget: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All spans are counted in one, and the answer, with the shorter ones beside it, in another."""
    count_tokens(["loaded"])
    asked = questions_to_helpers(monkeypatch)
    context = assemble(index, [QUERY, "retry latin"], budget)
    assert len(asked) == most
    assert bool(context.context) is (budget > 80)


def test_what_fits_by_its_bytes_is_answered_without_a_count_and_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "client.py").write_text(
        "class Client:\n    def retry(self):\n        return 1\n\n\ndef retry(): pass\n"
    )
    asked = questions_to_helpers(monkeypatch)
    with CodeIndex.open(tmp_path, embedder=None) as small:
        small.refresh()
        answers = [assemble(small, QUERY, budget) for budget in (4_000, 2_000)]
        assert asked == []
        monkeypatch.setattr(assembly, "most_tokens", lambda texts: [10_000 for _ in texts])  # so that all is counted
        assert [assemble(small, QUERY, budget) for budget in (4_000, 2_000)] == answers
        assert len(asked) == 2
        assert len(answers[0].context) == 1


def test_no_span_and_no_text_twice_and_several_files(index: CodeIndex) -> None:
    found = spans(assemble(index, QUERY, 30_000))
    assert len({fence.path for fence in found}) >= 4
    assert len({fence.code for fence in found}) == len(found)
    for one in found:
        for other in found:
            if one is not other and one.path == other.path:
                assert one.end_byte <= other.start_byte or other.end_byte <= one.start_byte


def test_neighbours_are_stitched(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("def parse_head():\n    pass\n\n\ndef parse_tail():\n    pass\n")
    with CodeIndex.open(tmp_path, embedder=None) as small:
        small.refresh()
        (item,) = assemble(small, "parse head and tail", 2_000).context
        assert item.lines == "1-6"


def test_a_file_changed_since_is_read_as_it_is_now(tmp_path: Path) -> None:
    file = tmp_path / "a.py"
    file.write_text("def parse_head():\n    return 'old'\n")
    with CodeIndex.open(tmp_path, embedder=None) as small:
        small.refresh()
        file.write_text("import os\n\n\ndef parse_head():\n    return 'new'\n")
        (fence,) = spans(assemble(small, "parse head", 2_000))
        assert fence.code.endswith("def parse_head():\n    return 'new'")
        file.unlink()
        assert assemble(small, "parse head", 2_000).context == ()


def test_a_file_replaced_by_a_link_out_of_the_workspace_is_not_shown(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    file, secret = tmp_path / "work" / "a.py", tmp_path / "secret.py"
    for path in (file, secret):
        path.write_text("def parse_head():\n    return 1\n")
    with CodeIndex.open(tmp_path / "work", embedder=None) as small:
        small.refresh()
        file.unlink()
        os.symlink(secret, file)
        assert assemble(small, "parse head", 2_000).context == ()


@pytest.mark.parametrize(("query", "budget"), [("", 1_000), ("  ", 1_000), ("x", 3), ("x " * 500, 100)])
def test_what_cannot_be_answered_is_a_usage_error(index: CodeIndex, query: str, budget: int) -> None:
    with pytest.raises(UsageError):
        assemble(index, query, budget)


def test_keys_are_masked_and_spans_stay_exact(tmp_path: Path) -> None:
    lines = "".join(f"    retry(client, 'größe {n}')\n" for n in range(30))
    keys = [f"sk-proj-abcdefghijklmnopqrst{n:04}ABCD" for n in range(8)]
    functions = [
        f"def retry_request_{n}(client):\n{lines}    client.key = '{key}'\n{lines}" for n, key in enumerate(keys)
    ]
    (tmp_path / "client.py").write_text("\n\n".join(functions))
    with CodeIndex.open(tmp_path, tmp_path / "store", embedder=None) as small:
        small.refresh()
        for budget in (400, 1_500, 6_000, 20_000):
            context = assemble(small, QUERY, budget)
            assert not [key for key in keys if key in str(context)]
            for fence in spans(context):
                content = Path(fence.path).read_bytes()
                assert fence.code.encode() == mask_bytes(content, fence.start_byte, fence.end_byte)
                assert len(fence.code.encode()) == fence.end_byte - fence.start_byte
                first = content[fence.start_byte : fence.end_byte].splitlines()[0]
                assert fence.code.encode().startswith(first)
        assert any(has_mask(fence.code) for fence in spans(assemble(small, QUERY, 20_000)))
