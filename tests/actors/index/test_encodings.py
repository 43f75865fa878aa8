"""Source files in any encoding: names are found, spans are exact in the file's own bytes, text is readable."""

from __future__ import annotations

import codecs
import unicodedata
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from callboard.actors.index import CodeIndex, assemble
from callboard.actors.index.encodings import line_end_before, source_of
from callboard.actors.index.tokens import terms_of
from callboard.protocol.code_fences import CodeFence, parse_fences

GERMAN = "def größe_ändern(überschrift):\n    # Ändert die Größe für „alle“ Fenster\n    return überschrift\n"
FRENCH = "# Le résumé de la fonction déjà créée\ndef créer_élève(prénom):\n    return prénom\n"
JAPANESE = "# 顧客の名前を取得する\ndef 名前を取得(顧客):\n    return 顧客.名前\n"
CHINESE = "# 获取客户的名称\ndef 获取名称(客户):\n    return 客户.名称\n"
TAIWANESE = "# 取得客戶的名稱\ndef 取得名稱(客戶):\n    return 客戶.名稱\n"
KOREAN = "# 고객의 이름을 가져온다\ndef 이름_가져오기(고객):\n    return 고객.이름\n"
RUSSIAN = "# Получить имя клиента из базы\ndef получить_имя(клиент):\n    return клиент.имя\n"
POLISH = "# Zażółć gęślą jaźń i pobierz imię klienta\ndef pobierz_imię(klient):\n    return klient.imię\n"
GREEK = "# Επιστρέφει το όνομα του πελάτη\ndef όνομα_πελάτη(πελάτης):\n    return πελάτης\n"
THAI = "# คืนชื่อลูกค้า\ndef ชื่อลูกค้า(ลูกค้า):\n    return ลูกค้า\n"
#: Text, encoding, and the function in it.
UNDECLARED = [
    (GERMAN, "cp1252", "größe_ändern"), (FRENCH, "latin-1", "créer_élève"), (JAPANESE, "shift_jis", "名前を取得"),
    (JAPANESE, "euc_jp", "名前を取得"), (JAPANESE, "iso2022_jp", "名前を取得"), (CHINESE, "gb18030", "获取名称"),
    (TAIWANESE, "big5", "取得名稱"), (KOREAN, "euc_kr", "이름_가져오기"), (RUSSIAN, "koi8_r", "получить_имя"),
    (RUSSIAN, "cp1251", "получить_имя"), (POLISH, "cp1250", "pobierz_imię"), (GREEK, "iso8859_7", "όνομα_πελάτη"),
    (THAI, "tis_620", "ชื่อลูกค้า"), (JAPANESE, "utf-8", "名前を取得"),
]  # fmt: skip
#: What files say of themselves; the last one is wrong about itself.
DECLARED = [
    ("# -*- coding: latin-1 -*-\n" + FRENCH, "latin-1", "créer_élève"),
    ("#!/usr/bin/python\n# vim: set fileencoding=koi8-r :\n" + RUSSIAN, "koi8_r", "получить_имя"),
    ("# coding=cp1252\n" + GERMAN, "cp1252", "größe_ändern"),
    ("# coding: gb18030\n" + CHINESE, "gb18030", "获取名称"),
    ("# coding: mac_roman\n" + FRENCH, "mac_roman", "créer_élève"),
    ("# coding: iso2022_kr\n" + KOREAN, "iso2022_kr", "이름_가져오기"),
    ("# coding: no-such-thing\n" + GERMAN, "cp1252", "größe_ändern"),
    ("# coding: utf-16\n" + GERMAN, "cp1252", "größe_ändern"),
    ("# coding: latin-1\n" + JAPANESE, "utf-8", "名前を取得"),
]
MARKED = [
    (codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"),
    (codecs.BOM_UTF32_LE, "utf-32-le"), (codecs.BOM_UTF32_BE, "utf-32-be"),
]  # fmt: skip
CASES = [
    *((text.encode(encoding), encoding, name) for text, encoding, name in (*UNDECLARED, *DECLARED)),
    *((mark + text.encode(encoding), encoding, name) for mark, encoding in MARKED for text, _, name in UNDECLARED[:3]),
]


def fence_of(index: CodeIndex, query: str) -> CodeFence:
    """The first snippet of the answer."""
    (fence, *_) = parse_fences(assemble(index, query, 2_000).context[0].snippet)
    assert isinstance(fence, CodeFence)
    return fence


@pytest.mark.parametrize(
    "around", ["", "import os\n\n\nfor x in range(10):\n    print(x)\n\n"], ids=["alone", "in ASCII"]
)
@pytest.mark.parametrize(("content", "encoding", "name"), CASES)
def test_names_are_found_spans_are_exact_and_text_is_readable(
    tmp_path: Path, content: bytes, encoding: str, name: str, around: str
) -> None:
    content += (around * 50).encode(encoding)
    (tmp_path / "module.py").write_bytes(content)
    (tmp_path / "other.py").write_text("def something_else():\n    return 1\n")
    with CodeIndex.open(tmp_path, embedder=None) as index:
        assert index.refresh().files == 2
        (symbol,) = index.symbols(name=name)
        assert symbol.canonical_path == f"module.{name}"
        span = content[symbol.start_byte : symbol.end_byte].decode(encoding)
        assert f"def {name}(" in span
        assert span.rstrip().endswith(content_end(span))
        assert index.search(name, 1)[0].name == name
        fence = fence_of(index, name)
        assert fence.path == str(tmp_path / "module.py")
        assert content[fence.start_byte : fence.end_byte].decode(encoding) == fence.code
        assert f"def {name}(" in fence.code


def content_end(span: str) -> str:
    """The function's last line."""
    return span.rstrip().splitlines()[-1].strip()


def test_utf16_without_a_mark_counts_as_binary(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_bytes(GERMAN.encode("utf-16-le"))
    (tmp_path / "b.py").write_bytes(codecs.BOM_UTF16_LE + GERMAN.encode("utf-16-le"))
    with CodeIndex.open(tmp_path) as index:
        index.refresh()
        assert {Path(hit.path).name for hit in index.search("größe_ändern", 5)} == {"b.py"}


def test_words_without_spaces_are_one_word(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(CHINESE)
    with CodeIndex.open(tmp_path) as index:
        index.refresh()
        assert index.search("获取客户的名称", 5)
        assert not index.search("客户的", 5)


def test_lines_count_the_same_in_wide_encodings(tmp_path: Path) -> None:
    """Bytes 0A stand in many UTF-16 characters that are no line ends, such as U+0A0A."""
    text = (
        "# \u0a05\u0a0a\u0b0a\n\n"
        + GERMAN
        + "\n\ndef später():\n"
        + "".join(f"    zeile_{n} = '\u0a0a\u010a'\n" for n in range(400))
    )
    (tmp_path / "wide.py").write_bytes(codecs.BOM_UTF16_LE + text.encode("utf-16-le"))
    with CodeIndex.open(tmp_path, embedder=None) as index:
        index.refresh()
        (symbol,) = index.symbols(name="später")
        assert (symbol.start_line, symbol.end_line) == (8, 408)
        item = assemble(index, "zeile später", 1_000).context[0]
        first, last = map(int, item.lines.split("-"))
        (fence,) = parse_fences(item.snippet)
        assert isinstance(fence, CodeFence)
        assert fence.code == "\n".join(text.split("\n")[first - 1 : last]), "cut at the end of a line"


def test_escape_sequences_of_terminals_do_not_make_another_encoding() -> None:
    assert source_of(b"RED = '\x1b[31m'\nRESET = '\x1b(B\x1b[m'\n").encoding == "utf-8"
    assert source_of("ROT = '\x1b[31mgrün'\n".encode()).encoding == "utf-8"


def test_what_is_mostly_utf8_stays_utf8(tmp_path: Path) -> None:
    """One broken byte, as from a careless cut, does not turn all the other letters into others."""
    (tmp_path / "cut.py").write_bytes(GERMAN.encode() + b"# broken: \xe4\n")
    with CodeIndex.open(tmp_path, embedder=None) as index:
        index.refresh()
        assert index.search("größe ändern", 1)[0].name == "größe_ändern"


@pytest.mark.parametrize("form", ["NFC", "NFD"])
def test_composed_and_decomposed_names_find_each_other(tmp_path: Path, form: str) -> None:
    other = {"NFC": "NFD", "NFD": "NFC"}[form]
    name = unicodedata.normalize(form, "größe_ändern")  # type: ignore[arg-type]
    code = f"def {name}():\n    return {unicodedata.normalize(form, 'überschrift')}()\n"  # type: ignore[arg-type]
    (tmp_path / unicodedata.normalize(form, "schön.py")).write_text(code)  # type: ignore[arg-type]
    (tmp_path / "other.py").write_text("def something_else(): ...\n")
    with CodeIndex.open(tmp_path, embedder=None) as index:
        index.refresh()
        wanted = unicodedata.normalize(other, "größe_ändern")  # type: ignore[arg-type]
        assert [hit.path for hit in index.search(wanted, 1)] == [hit.path for hit in index.search(name, 1)]
        assert index.search(wanted, 1)
        assert len(index.symbols(name=wanted)) == len(index.symbols(name=name)) == 1
        module = unicodedata.normalize(other, "schön.größe_ändern")  # type: ignore[arg-type]
        (symbol,) = index.symbols(canonical_path=module)
        assert [edge.target for edge in index.edges(symbol, "calls")] == ["überschrift"]


@pytest.mark.parametrize(
    ("written", "asked"),
    [
        ("STRASSE", "Straße"), ("Überschrift", "ÜBERSCHRIFT"), ("ПолучитьИмя", "получитьимя"), ("ΟΔΟΣ", "οδος"),
        ("İstanbul", "istanbul"), ("ＡＢＣ", "abc"), ("cafe\u0301", "CAFÉ"), ("ﬁle", "file"), ("नाम_बदलो", "नाम"),
        ("getÜberschrift", "überschrift"), ("ชื่อลูกค้า", "ชื่อลูกค้า"), ("HTTPÖffnung", "öffnung"),
    ],
)  # fmt: skip
def test_case_and_form_do_not_matter_in_any_script(written: str, asked: str) -> None:
    assert set(terms_of(asked).split()) & set(terms_of(written).split())


ENCODINGS = ["utf-8", "latin-1", "cp1252", "shift_jis", "gb18030", "euc_kr", "koi8_r", "utf-16-le", "utf-32-be", "big5"]


@given(st.text(max_size=200), st.sampled_from(ENCODINGS), st.data())
@example("é\nü", "latin-1", None)
def test_places_are_those_of_the_same_characters(text: str, encoding: str, data: st.DataObject | None) -> None:
    mark = {"utf-16-le": codecs.BOM_UTF16_LE, "utf-32-be": codecs.BOM_UTF32_BE}.get(encoding, b"")
    declared = "" if mark else f"# coding: {encoding}\n"
    content = mark + (declared + text).encode(encoding, "replace")
    source = source_of(content)
    shown = source.utf8.decode("utf-8", "replace")
    position = data.draw(st.integers(0, len(shown))) if data is not None else len(shown) // 2
    offset = len(shown[:position].encode())
    place = source.places([offset])[offset]
    if source.utf8.decode("utf-8", "ignore") == shown:  # the guess may be another encoding, with bytes it cannot decode
        assert content[source.mark_bytes : place].decode(source.encoding, "replace") == shown[:position]


@given(st.binary(max_size=300))
@example(b"\xff\xfe\x00")
@example(b"\xef\xbb\xbf\xff")
@example(b"# coding: utf-7\n\xff")
@example(b"# coding: rot13\n\xff")
@example(b"# coding: idna\n\xff\xff.\xff")
@example(b"\x1b$B\x1b(B")
def test_any_bytes_have_an_encoding_and_places(content: bytes) -> None:
    source = source_of(content)
    assert codecs.lookup(source.encoding)
    length = len(source.utf8)
    assert source.places([0, length]) == {0: source.mark_bytes, length: len(content)} or length == 0
    assert line_end_before(content, 0, len(content), source.encoding) < max(1, len(content))


def test_names_of_files_and_folders_that_are_no_text_are_counted(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("def alpha(): ...\n")
    (Path(bytes(tmp_path / "x").decode()).parent / b"caf\xe9.py".decode("utf-8", "surrogateescape")).write_text(
        "b = 1\n"
    )
    folder = tmp_path / b"d\xff".decode("utf-8", "surrogateescape")
    folder.mkdir()
    (folder / "inside.py").write_text("c = 1\n")
    with CodeIndex.open(tmp_path, embedder=None) as index:
        summary = index.refresh()
    assert (summary.files, summary.skipped["name_not_utf8"]) == (1, 2)
