"""What looks like a key is covered, byte for byte; code, words, checksums and placeholders are not."""

from __future__ import annotations

import os
import random
import re
import time
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from callboard.protocol.masking import FORMATS, MARK, NAMES, has_mask, mask, mask_bytes

KEYS = {
    "openai": "sk-proj-abcdefghijklmnopqrstuvwxyz0123456789ABCD",
    "openai old": "sk-1234567890abcdef1234567890abcdef",
    "anthropic": "sk-ant-api03-QWERTYUIOPasdfghjkl1234567890-_zxcvbnm",
    "openrouter": "sk-or-v1-0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
    "google": "AIzaSyA1234567890abcdefghijklmnopqrstuv",
    "google oauth": "ya29.a0AfH6SMBx1234567890abcdefghij",
    "google client": "GOCSPX-abcdEFGH1234ijklMNOP5678qrst",
    "github": "ghp_abcdefghijklmnopqrstuvwxyz0123456789",
    "github app": "ghs_0123456789abcdefghijABCDEFGHIJ012345",
    "github fine-grained": "github_pat_11ABCDEFG0abcdefghij_klmnopqrstuvwxyz",
    "gitlab": "glpat-abcdEFGH1234ijklMNOP",
    "slack": "xoxb-123456789012-abcdefGHIJKL",
    "slack app": "xapp-1-A0123456789-0123456789-abcdef",
    "aws id": "AKIAIOSFODNN7ABCDEFG",
    "aws session id": "ASIAIOSFODNN7ABCDEFG",
    "sendgrid": "SG.abcdefghijklmnop1234.qrstuvwxyzABCDEFGHIJ5678",
    "stripe": "sk_live_abcdefghijklmnop1234",
    "stripe public": "pk_live_abcdefghijklmnop1234",
    "huggingface": "hf_abcdefghijklmnopqrstuvwxyz12345678",
    "npm": "npm_abcdefghijklmnopqrstuvwxyz0123456789",
    "pypi": "pypi-AgEIcHlwaS5vcmcCJDAwMDAwMDAwLTAwMDA",
    "groq": "gsk_abcdefghijklmnop1234567890",
    "xai": "xai-abcdefghijklmnop1234567890",
    "replicate": "r8_abcdefghijklmnop1234567890",
    "digitalocean": "dop_v1_0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
    "shopify": "shpat_0123456789abcdef0123456789abcdef",
    "jwt": "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9PlFUP0THsR8U",
    "vault": "hvs.abcdefghijklmnop1234567890",
    "docker": "dckr_pat_abcdefghijklmnop1234567890",
    "telegram": "1234567890:AAabcdefghijklmnopqrstuvwxyz0123456",
}
#: The text, and what of it must not be shown.
PLACES = {
    "password in quotes": ('password = "hunter2"', "hunter2"),
    "password with letters beyond ASCII": ('password = "hunté2"', "hunté2"),
    "password with symbols": ("passwd: 'p@ss!word'", "p@ss!word"),
    "JSON": ('{"password": "hunter22", "user": "ann"}', "hunter22"),
    "JSON in JSON": (r'"{\"api_key\": \"abcdef1234567890zz\"}"', "abcdef1234567890zz"),
    "env file": ("export DB_PASSWORD=hunter2\nX=1", "hunter2"),
    "env key": ("MY_API_KEY=abcdef1234567890", "abcdef1234567890"),
    "YAML": ("db:\n  password: S3cr3t!pass\n", "S3cr3t!pass"),
    "annotated": ('api_key: str = "abcdef1234567890zz"', "abcdef1234567890zz"),
    "optional": ('api_key: str | None = "abcdef1234567890zz"', "abcdef1234567890zz"),
    "TypeScript": ("const apiKey: string = 'abcdef1234567890zz';", "abcdef1234567890zz"),
    "Go": ('clientSecret := "abcdef1234567890zz"', "abcdef1234567890zz"),
    "default of a lookup": ('os.environ.get("API_KEY", "abcdef1234567890zz")', "abcdef1234567890zz"),
    "comparison": ('if token == "a1b2c3d4e5f6a7b8c9":', "a1b2c3d4e5f6a7b8c9"),
    "Ruby": (":client_secret => 'a1b2c3d4e5f6a7b8c9'", "a1b2c3d4e5f6a7b8c9"),
    "XML": ("<password>S3cr3tP4ss</password>", "S3cr3tP4ss"),
    "header": ("Authorization: Bearer abcdef1234567890abcdef", "abcdef1234567890abcdef"),
    "basic": ("Authorization: Basic dXNlcjpwYXNzd29yZDEyMw==", "dXNlcjpwYXNzd29yZDEyMw=="),
    "option": ("curl --auth-token abcdef1234567890zz x", "abcdef1234567890zz"),
    "URL": ("postgres://admin:correcthorse@db.example.com/x", "correcthorse"),
    "URL without a user": ("redis://:p4ssw0rd@host:6379", "p4ssw0rd"),
    "token in a URL": ("https://abcdef1234567890abcdef@github.com/x", "abcdef1234567890abcdef"),
    "query": ("https://x/y?sv=2020&sig=abcDEF123%2B456ghi789%3D&x", "abcDEF123%2B456ghi789%3D"),
    "connection string": ("Server=tcp:x;User=sa;Password=Pa55w0rd!x;Encrypt=True", "Pa55w0rd!x"),
    "Azure": ("AccountName=x;AccountKey=abcd1234EFGH5678ijkl9012MNOP==;Suffix=core", "abcd1234EFGH5678ijkl9012MNOP"),
    "aws secret": ("aws_secret_access_key = wJalrXUtnFEMI/K7MDENG/bPxRfiCY", "wJalrXUtnFEMI/K7MDENG/bPxRfiCY"),
    "aws pair": ("AKIAIOSFODNN7ABCDEFG,wJalrXUtnFEMI/K7MDENG/bPxRfiCYABCDEFGHIJ", "wJalrXUtnFEMI/K7MDENG"),
    "webhook": ("https://hooks.slack.com/services/T0000/B0000/abcdefgh1234IJKLmnopqrst", "abcdefgh1234IJKL"),
    "netrc": ("machine x login ann password h3llo-there", "h3llo-there"),
    "npmrc": ("//registry.npmjs.org/:_authToken=abcdef12-3456-7890-abcd-ef1234567890", "abcdef12-3456"),
    "docker": ('{"auths": {"x": {"auth": "dXNlcjpwYXNzd29yZDEyMw=="}}}', "dXNlcjpwYXNzd29yZDEyMw"),
    "django": ("SECRET_KEY = 'django-insecure-#x^k2)9s!q+4l8z5'", "x^k2)9s!q+4l8z5"),
    "Kubernetes": ("- name: API_KEY\n  value: abcdef1234567890", "abcdef1234567890"),
    "a name and its value in JSON": ('{"name": "DB_PASSWORD",\n "value": "hunter22"}', "hunter22"),
    "a name and its value in XML": ('<add key="ApiKey" value="abcdef1234567890zz"/>', "abcdef1234567890zz"),
    "header in quotes": ('curl -H "X-Api-Key: abcdef1234567890" x', "abcdef1234567890"),
    "numbered": ("API_KEY_2=abcdef1234567890", "abcdef1234567890"),
}
PEM = "-----BEGIN PRIVATE KEY-----\nMIIEowIBAAKCAQEA0Z3VS5JJ\ncds3xfnA\n-----END PRIVATE KEY-----\n"
PLAIN = (
    "password = get_password()",
    'token = "token"',
    'api_key = os.environ["X"]',
    'api_key=os.getenv("OPENAI_API_KEY")',
    '"integrity": "sha512-aBcDeFgHiJkLmNoPqRsTuVwXyZ0123456789+/aBcDeFgHiJkLmNoPqRsTuVwXyZ=="',
    'id = "550e8400-e29b-41d4-a716-446655440000"',
    "commit 7567bb6e598465ff85ad84a1d665e9bf451aabcd",
    'api_key = "your-api-key-here"',
    'api_key = "sk-xxxxxxxxxxxxxxxxxxxxxxxx"',
    "OPENAI_API_KEY=<your key>",
    "OPENAI_API_KEY=",
    "password: ${DB_PASSWORD}",
    "password: {{ vault_password }}",
    "token = tokens[index]",
    "self.token = self.lexer.next_token2()",
    "password = password1\n",
    "def login(user, password=None, token: str | None = None):",
    'token: str = "token"',
    'class="sk-toggleable__content sk-estimator-doc-link"',
    "postgres://user:password@host",
    "http://localhost:8080/path@x",
    "items.sort(key=lambda x: x[1])",
    'PASSWORD_FIELD = "password_field_2"',
    'secret_name = "projects/123/secrets/abc"',
    'f"https://{user}:{password}@host"',
    "Bearer token_of_the_user",
    "Basic authentication is required",
    'access_token_url = "https://example.com/oauth2/token"',
    'key = "a1b2c3d4e5f6a7b8c9d0"',
    "secret: /run/secrets/db_password1",
    'password = "********"',
    'password = "Enter your password"',
    "if token == TOKEN_2:",
    'eos_token="<|endoftext|>"',
    "-----BEGIN CERTIFICATE-----\nMIIDdzCCAl+gAwIBAgIEAgAAuTANBgkqhkiG9w0BAQUFADBa\n-----END CERTIFICATE-----",
    "ssh-rsa AAAAB3NzaC1yc2EAAAADAQABAAABgQC7vbqajDhA ann@host",
    "a run of ****** and **** is no mask",
)


@pytest.mark.parametrize("key", KEYS.values(), ids=KEYS)
@pytest.mark.parametrize("around", ["%s", "x = '%s'", "(%s)", "see https://x.y/%s now", "größe=%s,", "- %s\r\n"])
def test_keys_with_a_known_format_are_covered(key: str, around: str) -> None:
    text = around % key
    shown = mask(text)
    assert key[8:] not in shown
    assert has_mask(shown)
    assert len(shown.encode()) == len(text.encode())
    assert shown.startswith(around.partition("%s")[0])
    assert shown.endswith(around.partition("%s")[2])


@pytest.mark.parametrize(("text", "secret"), PLACES.values(), ids=PLACES)
def test_a_value_behind_a_name_is_covered_and_what_is_around_it_is_not(text: str, secret: str) -> None:
    shown = mask(text)
    assert secret not in shown
    assert has_mask(shown)
    before = text.index(secret) - len("AKIAIOSFODNN7ABCDEFG,https://hooks.slack.com/services/T0000/B0000/")
    assert shown.startswith(text[: max(0, before)])
    assert len(shown.encode()) == len(text.encode())


@pytest.mark.parametrize("text", PLAIN)
def test_code_words_checksums_and_placeholders_stay(text: str) -> None:
    assert mask(text) == text
    assert not has_mask(text)


@pytest.mark.parametrize(
    "kind", ["RSA PRIVATE KEY", "PRIVATE KEY", "OPENSSH PRIVATE KEY", "EC PRIVATE KEY", "PGP PRIVATE KEY BLOCK"]
)
@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\\n"])
def test_a_private_key_block_is_covered_line_by_line(kind: str, line_end: str) -> None:
    body = ["Proc-Type: 4,ENCRYPTED", "", "MIIEowIBAAKCAQEA0Z3VS5JJcds3xfn/ygWyF8PbnGcY5unA67hq", "q8=="]
    text = line_end.join(["before", f"-----BEGIN {kind}-----", *body, f"-----END {kind}-----", "after"])
    shown = mask(text)
    assert not any(line in shown for line in body if line)
    assert [len(line.encode()) for line in shown.split("\n")] == [len(line.encode()) for line in text.split("\n")]
    assert shown.startswith("before")
    assert shown.endswith(f"-----END {kind}-----{line_end}after")


def test_a_private_key_that_is_cut_off_is_covered_to_the_end() -> None:
    text = "-----BEGIN PRIVATE KEY-----\nMIIEowIBAAKCAQEA0Z3VS5JJ\ncds3xfn"
    assert "MIIEabc" not in mask("-----BEGIN PRIVATE KEY-----\nMIIEabc\n-----END PRIVATE KEY-----")
    assert mask(text).splitlines()[1:] == [f"{MARK}{'*' * 18}{MARK}", f"{MARK}*{MARK}"]


@pytest.mark.parametrize("key", [*KEYS.values(), PEM])
def test_a_piece_of_a_key_is_covered_wherever_it_is_cut(key: str) -> None:
    """The bytes of a span are shown as in the whole text: what is outside the span decides too."""
    data = f"größe = 1\nx = '{key}'\ny = 2\n".encode()
    for start in range(len(data)):
        for end in (start, start + 5, start + 12, len(data)):
            shown = mask_bytes(data, start, end)
            assert len(shown) == len(data[start:end])
            assert (key[12:20] if key != PEM else key[30:42]).encode() not in shown
    begin = data.index(key.encode())
    assert mask_bytes(data, 0, begin) == data[:begin]


def test_a_key_in_pieces_of_source_is_covered_and_the_code_behind_it_is_not() -> None:
    begin = "-----BEGIN PRIVATE KEY-----"
    text = f'K = (\n    "{begin}\\n"\n    "MIIEowIBAAKCAQEA0Z3VS5JJ\\n"\n    "cds3xfnA\\n"\n)\nx = 1\n'
    shown = mask(text)
    assert "Z3VS5JJ" not in shown
    assert "cds3xfnA" not in shown
    assert shown.endswith('"\n)\nx = 1\n')
    code = f'if b"{begin}" in data:\n    return found\nEND = "-----END PRIVATE KEY-----"\n'
    assert mask(code) == code


@pytest.mark.parametrize("sign", ["# ", "// ", " * ", "> ", "; ", "| "])
def test_a_private_key_in_a_comment_is_covered(sign: str) -> None:
    text = "".join(f"{sign}{line}\n" for line in PEM.splitlines())
    shown = mask(text)
    assert "MIIEowIBAAKCAQEA0Z3VS5JJ" not in shown
    assert "cds3xfnA" not in shown
    assert shown.endswith(f"{sign}-----END PRIVATE KEY-----\n")


def test_every_format_has_a_source_and_finds_what_is_made_for_it() -> None:
    rng = random.Random(7)
    for each in FORMATS:
        assert each.source
        assert re.fullmatch(r"[\w./-]+", each.prefix)
        for _ in range(3):
            key = each.prefix + made_for(each.rest, rng)
            assert has_mask(mask(f"x {key} y")), key
            assert mask(f"x{key}").startswith(f"x{each.prefix}") or each.prefix in key[1:], f"{key}: in another word"


def made_for(pattern: str, rng: random.Random) -> str:
    """A random text that the pattern of a format takes: its groups' first choice, its classes filled."""
    pattern = re.sub(r"\(\?![^)]*\)|\|\(\?P<no_key>.*", "", pattern)
    pattern = re.sub(r"\(\?:([^|)]*)[^)]*\)\??", lambda match: match[1] if "xox" not in match[1] else "", pattern)

    def fill(match: re.Match[str]) -> str:
        allowed = [chr(code) for code in range(48, 123) if re.fullmatch(match[1], chr(code)) and chr(code).isalnum()]
        return "".join(rng.choices(allowed, k=int(match[2]))) if match[2] else "" if match[3] else rng.choice(allowed)

    filled = re.sub(r"(\[[^\]]+\]|\\w)(?:\{(\d+)(?:,\d*)?\}|(\*))?", fill, pattern)
    return filled.replace("\\.", ".").replace("=*", "")


# -- properties --------------------------------------------------------------------------------------------------------

ANY_TEXT = st.lists(
    st.one_of(
        st.text(max_size=12),
        st.sampled_from([*KEYS.values(), *(text for text, _ in PLACES.values()), *PLAIN]),
        st.sampled_from(
            ['"', "'", "\\", "=", ": ", "\n", "password", "token=", "api_key", "://", "@", MARK, "é", "\ud800"]
        ),
    ),
    max_size=10,
).map("".join)


@given(ANY_TEXT)
@example("token='\\")
@example(f'password = "{MARK}**{MARK}"')
@example(f"{KEYS['aws id']}{KEYS['telegram']}")
@example(f"{KEYS['aws id']}{KEYS['openai']}OPENAI_API_KEY=API_KEY_2=abcdef1234567890")
@example(f"{KEYS['openai']}Bearer token_of_the_userBearer token_of_the_user{KEYS['openai']}")
def test_bytes_and_lines_are_kept_and_a_mask_is_not_masked_again(text: str) -> None:
    shown = mask(text)
    before, after = (each.encode("utf-8", "surrogatepass") for each in (text, shown))
    assert len(after) == len(before)
    assert [at for at, byte in enumerate(after) if byte in b"\r\n"] == [
        at for at, byte in enumerate(before) if byte in b"\r\n"
    ]
    assert mask(shown) == shown
    assert has_mask(shown) or shown == text


@given(ANY_TEXT, st.integers(0, 200), st.integers(0, 200))
def test_a_part_is_shown_as_long_as_it_is(text: str, start: int, length: int) -> None:
    data = text.encode("utf-8", "surrogatepass")
    assert len(mask_bytes(data, start, start + length)) == len(data[start : start + length])


@given(st.sampled_from(sorted(KEYS.values())), st.text("abc =\"'\n", max_size=20), st.text(" =\"'\n,;", max_size=20))
def test_a_key_is_found_wherever_it_is(key: str, before: str, after: str) -> None:
    shown = mask(f"{before} {key}{after}")
    assert key not in shown


def test_a_mask_never_cuts_a_character() -> None:
    """A value longer than a pattern looks at ends in the middle of a character of two bytes."""
    for spaces in range(3):
        text = "password: " + "a" * spaces + "1é" * 400
        assert len(mask(text).encode()) == len(text.encode())


# -- cost and precision ------------------------------------------------------------------------------------------------

HOSTILE = (
    *(name.literal.decode() + sign for name in NAMES for sign in ("=", ':"', " : ", "='\\")),
    *sorted({each.prefix for each in FORMATS}),
    "-----BEGIN PRIVATE KEY-----",
    "-",
    "--token ",
    "://",
    "://a:",
    "a:b@",
    "password: a.b = ",
    "Bearer ",
    "login a password ",
    "Aa0_",
    "[",
    "\\",
    "\n",
    "sk-a",
    "\u00e9",
    f"{KEYS['aws id']}auth={'a1b2c3d4e5g6h7i8' * 32}",  # each mask uncovers the next key
)


#: Where each of them read on to the end, that alone would take 30 times as long as all the rest.
HOSTILE_BYTES = 16_384 if os.environ.get("CALLBOARD_DEEP") else 4_096


@pytest.mark.repeats
@pytest.mark.parametrize("piece", HOSTILE)
def test_the_cost_grows_as_the_text_does(piece: str) -> None:
    """Sixteen times the text takes about 16 times as long; were it quadratic, it would take 256 times as long."""
    size = HOSTILE_BYTES // len(piece)
    small, large = piece * size, piece * size * 16
    fastest = min(cost(small) for _ in range(3))
    assert any(cost(large) < 64 * max(fastest, 50_000) for _ in range(5))


@pytest.mark.parametrize("links", [1, 3, 8, 400])
def test_a_chain_in_which_each_mask_uncovers_the_next_key_is_covered(links: int) -> None:
    """`auth` is a name only behind a mask, and what follows the 512 bytes of its value is a key only behind one."""
    rng = random.Random(links)
    letters, signs = "ABCDEFGHJKLMNPQR", "acdeghijkmnopqstvwxyz0123456789"
    keys = [("AKIA" + "".join(rng.sample(letters, 16)), "".join(rng.choices(signs, k=512))) for _ in range(links)]
    text = "".join(f"{key}auth={value}" for key, value in keys)
    shown = mask(text)
    assert not any(key in shown or value[-30:] in shown for key, value in keys)
    assert mask(shown) == shown
    assert len(shown.encode()) == len(text)


def cost(text: str) -> int:
    """CPU time in ns, of this thread alone."""
    before = time.thread_time_ns()
    mask(text)
    return time.thread_time_ns() - before


def test_the_sources_of_this_repository_hold_no_new_masks() -> None:
    """What is masked in what is no test is a made-up key of an example, or a mistake."""
    root = Path(__file__).parents[2]
    files = [file for room in ("protocol", "providers", "actors", "docs") for file in (root / room).rglob("*.*")]
    covered = []
    for file in files:
        if file.suffix in (".py", ".md", ".js", ".css", ".html"):
            text = file.read_text()
            lines = zip(text.split("\n"), mask(text).split("\n"), strict=True)
            covered += [(file.name, line.strip()) for line, shown in lines if line != shown]
    assert len(covered) <= 3, covered


def test_hardly_anything_in_the_standard_library_looks_like_a_key() -> None:
    """Its sources hold no keys: what is covered there is a mistake. One in 100 files at the most."""
    library = Path(os.__file__).parent
    files = [
        *library.glob("*.py"),
        *library.glob("email/*.py"),
        *library.glob("http/*.py"),
        *library.glob("asyncio/*.py"),
    ]
    covered = [file.name for file in files if has_mask(mask(file.read_text(errors="replace")))]
    assert len(covered) <= len(files) // 100, covered
