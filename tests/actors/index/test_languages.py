"""Every language with a query: one file each, its symbols by canonical path, kind and exact first and last words."""

import subprocess
import sys

import pytest
from support.offenders import no_offenders

from callboard.actors.index import grammars, languages
from callboard.actors.index.records import Symbol
from callboard.actors.index.symbols import KINDS, Lines, Outline, grammar_of, outline

Expected = dict[str, tuple[str, str]]

CASES: dict[str, tuple[str, Expected]] = {
    "python": (
        "import os\n# Why\n@cache\ndef f():\n    g()\n\nclass A(B):\n    def m(self):\n        def inner(): pass\n",
        {
            "m.f": ("function", "# Why"),
            "m.A": ("class", "class A"),
            "m.A.m": ("method", "def m"),
            "m.A.m.inner": ("function", "def inner"),
        },
    ),
    "rust": (
        "/// Doc\n#[inline]\npub fn f() { g(); }\nstruct S;\nimpl T for S { fn m(&self) {} }\n"
        "mod x { pub enum E { A } }\n",
        {
            "m::f": ("function", "/// Doc"),
            "m::S": ("struct", "struct S"),
            "m::S::m": ("method", "fn m"),
            "m::x::E": ("enum", "pub enum"),
        },
    ),
    "javascript": (
        "/** Doc */\nexport function f() {}\nclass A extends B { m() { c() } }\nconst h = () => 1\n"
        "exports.k = function () {}\n",
        {
            "m.f": ("function", "/** Doc"),
            "m.A": ("class", "class A"),
            "m.A.m": ("method", "m()"),
            "m.h": ("function", "const h"),
            "m.k": ("function", "exports.k"),
        },
    ),
    "typescript": (
        "export interface I extends J { x(): void }\ntype T = 1\n"
        "export class A<T> implements I { private m(): T {} }\nenum E { A }\n",
        {
            "m.I": ("interface", "export interface"),
            "m.T": ("type", "type T"),
            "m.A": ("class", "export class"),
            "m.A.m": ("method", "private m"),
            "m.E": ("enum", "enum E"),
        },
    ),
    "tsx": ("export const V = () => <div/>\n", {"m.V": ("function", "export const V")}),
    "go": (
        "package p\n// Doc\nfunc F() { g() }\ntype S struct{}\nfunc (s *S) M() {}\ntype I interface{ X() }\n",
        {
            "m.F": ("function", "// Doc"),
            "m.S": ("struct", "type S"),
            "m.S.M": ("method", "func (s"),
            "m.I": ("interface", "type I"),
        },
    ),
    "java": (
        "package p;\n/** Doc */\n@X public class A extends B implements C {\n"
        "  @Override void m() { g(); }\n}\nenum E { P }\n",
        {"m.A": ("class", "/** Doc"), "m.A.m": ("method", "@Override"), "m.E": ("enum", "enum E")},
    ),
    "c": (
        "/* Doc */\nstatic int *f(int x) { return g(x); }\nstruct s { int a; };\n#define M(x) x\n",
        {"m.f": ("function", "/* Doc"), "m.s": ("struct", "struct s"), "m.M": ("macro", "#define M")},
    ),
    "cpp": (
        "namespace n { template <class T> class A : public B { void m() {} }; }\nint n::A::k() { return 1; }\n",
        {
            "m::n": ("module", "namespace n"),
            "m::n::A": ("class", "template"),
            "m::n::A::m": ("method", "void m"),
            "m::n::A::k": ("function", "int n::A::k"),
        },
    ),
    "csharp": (
        "namespace N { /// Doc\npublic class A : B { public int P { get; } void M() { G(); } } interface I {} }\n",
        {
            "m.N.A": ("class", "public class"),
            "m.N.A.P": ("property", "public int P"),
            "m.N.A.M": ("method", "void M"),
            "m.N.I": ("interface", "interface I"),
        },
    ),
    "ruby": (
        "module M\n  # Doc\n  class A < B\n    def m; g; end\n    def self.s; end\n  end\nend\n",
        {
            "m::M": ("module", "module M"),
            "m::M::A": ("class", "# Doc"),
            "m::M::A::m": ("method", "def m"),
            "m::M::A::s": ("method", "def self.s"),
        },
    ),
    "php": (
        "<?php\nclass A extends B { public function m() { g(); } }\nfunction f() {}\ninterface I {}\n",
        {
            "m::A": ("class", "class A"),
            "m::A::m": ("method", "public function"),
            "m::f": ("function", "function f"),
            "m::I": ("interface", "interface I"),
        },
    ),
    "kotlin": (
        "class A(val x: Int) : B() { fun m() { g() } }\nfun f() = 1\nobject O {}\n",
        {
            "m.A": ("class", "class A"),
            "m.A.m": ("method", "fun m"),
            "m.f": ("function", "fun f"),
            "m.O": ("class", "object O"),
        },
    ),
    "swift": (
        "class A: B {\n  func m() { g() }\n}\nprotocol P {\n  func q()\n}\nfunc f() {}\n",
        {
            "m.A": ("class", "class A"),
            "m.A.m": ("method", "func m"),
            "m.P": ("interface", "protocol P"),
            "m.f": ("function", "func f"),
        },
    ),
    "scala": (
        "class A extends B { def m = g(1) }\nobject O { def f() = 1 }\ntrait T\n",
        {
            "m.A": ("class", "class A"),
            "m.A.m": ("method", "def m"),
            "m.O": ("class", "object O"),
            "m.T": ("trait", "trait T"),
        },
    ),
    "bash": (
        "# Doc\nf() {\n  g\n}\nfunction h { :; }\n",
        {"m.f": ("function", "# Doc"), "m.h": ("function", "function h")},
    ),
    "lua": (
        "local function f() g() end\nfunction M.k() end\n",
        {"m.f": ("function", "local function"), "m.k": ("function", "function M.k")},
    ),
    "elixir": (
        "defmodule A do\n  def f(x), do: x\n  defp g, do: 1\nend\n",
        {"m.A": ("module", "defmodule"), "m.A.f": ("function", "def f"), "m.A.g": ("function", "defp g")},
    ),
    "perl": ("# Doc\nsub f { g(); }\n", {"m::f": ("function", "# Doc")}),
    "proto": (
        'syntax = "proto3";\nmessage A { int32 x = 1; }\nservice S { rpc R (A) returns (A); }\n',
        {"m.A": ("struct", "message A"), "m.S": ("interface", "service S"), "m.S.R": ("method", "rpc R")},
    ),
    "hcl": ('resource "x" "y" {\n  a = 1\n}\n', {"m.x": ("type", "resource")}),
    "sql": ("CREATE TABLE t (a int);\n", {"m.t": ("type", "CREATE TABLE")}),
    "zig": ("fn f() void { g(); }\n", {"m.f": ("function", "fn f")}),
    "haskell": ("f x = g x\ndata D = D\n", {"m.f": ("function", "f x"), "m.D": ("type", "data D")}),
    "julia": ("function f(x)\n  g(x)\nend\n", {"m.f": ("function", "function f")}),
    "ocaml": ("let f x = g x\n", {"m.f": ("function", "let f")}),
    "solidity": (
        "contract A { function f() public { g(); } }\n",
        {"m.A": ("class", "contract A"), "m.A.f": ("method", "function f")},
    ),
    "dart": ("class A { }\nenum E { x }\n", {"m.A": ("class", "class A"), "m.E": ("enum", "enum E")}),
}


def parsed(language_name: str, text: str) -> Outline:
    content = text.encode()
    return outline(content, languages.by_name(language_name), "m", Lines(content))


@pytest.mark.parametrize("name", CASES)
def test_symbols(name: str) -> None:
    text, expected = CASES[name]
    symbols = {symbol.canonical_path: symbol for symbol in reversed(parsed(name, text).symbols)}
    assert {path: symbols[path].kind for path in expected if path in symbols} == {
        p: kind for p, (kind, _) in expected.items()
    }
    for path, (_, first_words) in expected.items():
        assert text.encode()[symbols[path].start_byte :].decode().startswith(first_words)


@pytest.mark.parametrize("name", grammars.PROJECT_WHEELS)
def test_the_wheels_of_the_tree_sitter_project_give_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With semble-grammars not installed."""
    text = CASES[name][0] + CASES[name][0].replace("{", "")
    expected = parsed(name, text)
    assert len(expected.symbols) > 1
    monkeypatch.setitem(sys.modules, "semble_grammars", None)
    monkeypatch.setattr(grammars, "_SAID", {})
    grammars.grammar_for.cache_clear()
    grammar_of.cache_clear()
    try:
        assert parsed(name, text) == expected
        assert grammars.warnings() == []
    finally:
        grammars.grammar_for.cache_clear()
        grammar_of.cache_clear()


#: What queries of prose capture (headings.py; test_headings.py has their cases).
HEADINGS = ("heading", "h1", "h2", "h3", "h4", "h5", "h6")


def test_every_language_with_a_query_has_a_case_and_at_least_12_have() -> None:
    with_query = {language.name for language in languages.LANGUAGES if language.is_code}
    assert with_query == set(CASES)
    assert len(with_query) >= 12


def test_queries_use_known_captures_only() -> None:
    known = {*KINDS, "name", "receiver", "call", "super", "import", "attach", *HEADINGS}
    with_query = [language for language in languages.LANGUAGES if language.query]
    no_offenders(
        f"{language.name}: {capture}"
        for language in with_query
        for capture in captures(language) - known
        if not capture.startswith("_")
    )


def captures(language: languages.Language) -> set[str]:
    grammar = grammar_of(language)
    assert grammar is not None, language.name
    return {grammar.query.capture_name(n) for n in range(grammar.query.capture_count)}


def edges(name: str, text: str) -> set[tuple[str, str, str]]:
    result = parsed(name, text)
    return {(result.symbols[edge.source].name, edge.kind, edge.target) for edge in result.edges}


def test_edges_of_several_languages() -> None:
    assert edges("python", CASES["python"][0]) >= {
        ("m", "imports", "os"),
        ("f", "calls", "g"),
        ("A", "implements", "B"),
    }
    assert edges("rust", CASES["rust"][0]) >= {("f", "calls", "g"), ("S", "implements", "T")}
    assert edges("java", CASES["java"][0]) >= {("m", "calls", "g"), ("A", "implements", "B"), ("A", "implements", "C")}
    assert edges("typescript", CASES["typescript"][0]) >= {("A", "implements", "I"), ("I", "implements", "J")}
    assert edges("cpp", CASES["cpp"][0]) >= {("A", "implements", "B")}
    assert edges("go", CASES["go"][0]) >= {("F", "calls", "g")}


def test_same_names_get_ordinals() -> None:
    symbols = parsed("python", "def f(): pass\ndef f(): pass\n").symbols
    assert [(symbol.canonical_path, symbol.ordinal) for symbol in symbols[1:]] == [("m.f", 0), ("m.f", 1)]


@pytest.mark.parametrize("name", CASES)
def test_broken_syntax_gives_what_parses(name: str) -> None:
    text, _ = CASES[name]
    for broken in (text[: len(text) * 2 // 3], "}}} ((( \"'" + text, text.replace("{", "")):
        check_nesting(parsed(name, broken).symbols, len(broken.encode()))


def check_nesting(symbols: tuple[Symbol, ...], size: int) -> None:
    for symbol in symbols[1:]:
        outer = symbols[symbol.parent]
        assert outer.start_byte <= symbol.start_byte <= symbol.end_byte <= outer.end_byte <= size


@pytest.mark.parametrize(
    ("path", "language", "module"),
    [
        ("src/pkg/__init__.py", "python", "pkg"),
        ("pkg/mod.py", "python", "pkg.mod"),
        ("src/net/mod.rs", "rust", "net"),
        ("crates/a/src/lib.rs", "rust", "crates::a"),
        ("main.go", "go", "main"),
        ("src/main/java/a/B.java", "java", "a.B"),
        ("docs/guide.md", "text", "docs/guide.md"),
    ],
)
def test_module_paths(path: str, language: str, module: str) -> None:
    assert languages.module_path(path, languages.by_name(language)) == module


def test_a_header_with_classes_is_cpp() -> None:
    assert languages.language_of("a.h", b"#pragma once\nclass A {\n public:\n};\n").name == "cpp"
    assert languages.language_of("a.h", b"int f(void);\n").name == "c"
    assert languages.language_of("run", b"#!/usr/bin/env python3\n").name == "python"


@pytest.mark.parametrize("name", ["bash", "perl"])
def test_characters_that_kill_a_grammar_do_not_reach_it(name: str) -> None:
    """In a process of its own; the symbols behind them keep their places."""
    program = f"""
from callboard.actors.index import grammars, languages
from callboard.actors.index.symbols import Lines, outline
language = next(each for each in languages.LANGUAGES if each.name == {name!r})
start = {{"bash": "f() {{ echo ", "perl": "sub f {{ print "}}[{name!r}]
for code in range(0x10000, 0x110000, 0x400):
    text = (start + '"' + chr(code) + '" {{' + chr(code) + ";\\n}}\\n").encode()
    outline(text, language, "m", Lines(text))
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=50, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")
