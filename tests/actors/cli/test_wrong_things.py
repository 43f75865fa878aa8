"""Wrong things at a terminal: each ends within a bound, in one sentence that says what to do, and with its status."""

from __future__ import annotations

import re
import shlex
import socket
from pathlib import Path
from typing import Any, Final

import pytest

#: Of usage. What was typed rightly and failed is 1, and says so in the table.
USAGE: Final = 2
#: Files beside the workspace's weather.py.
FILES: Final = {
    "empty.toml": "",
    "broken.toml": "[default\nmodel = 1",
    "unknown_key.toml": '[default]\nmodle = "openai/gpt-5"\n',
    "unknown_section.toml": '[defaults]\nmodel = "openai/gpt-5"\n',
    "wrong_type.toml": "[default]\nmax_steps = 'many'\n",
    "negative.toml": "[default]\nmax_steps = -1\n",
    "bad_timeout.toml": "[default]\napproval_timeout_seconds = 'soon'\n",
    "bad_rule.toml": "[[default.policy.rules]]\ntool = '*'\ndecision = 'perhaps'\n",
    "bad_trust.toml": "[default]\ntrust = 'total'\n",
    "bad_model.toml": "[default]\nmodel = 'gpt-5'\n",
    "bad_server.toml": "[default.mcp_servers.files]\ncommnad = 'npx'\n",
    "bad_proxy.toml": "[default]\nproxy = 'socks5://localhost:1'\n",
    "bad_daemon.toml": "[daemon]\nprot = 8330\n",
    "bad_port.toml": "[daemon]\nport = 99999\n",
    "bad_tenant.toml": "[tenants.ann]\nworkspac = '/srv'\n",
    "bad_limits.toml": "[daemon.limits]\nhead_seconds = -5\n",
    "bad_alias.toml": "[daemon]\nmodels = { fast = 'gpt-5' }\n",
    "no_folder.toml": "[tenants.ann]\nworkspace = '/no/such/folder'\n",
    "no_tools_file.toml": "[tenants.ann]\ntools = ['nowhere.py']\n",
    "bad_embedding.toml": "[daemon]\nembedding_model = 'small'\n",
    "two_models.toml": "[default]\nmodel = 'openai/a'\nmodel = 'openai/b'\n",
    "raises.py": "raise ValueError('at import')\n",
    "not_python.py": "def (:\n",
    "no_tools.py": "x = 1\n",
    "untyped.py": "from callboard import tool\n@tool\ndef f(a, *b):\n    return a\n",
    "missing_module.py": "import no_such_module\n",
    "notes.txt": "just text",
    "half.json": '{"half": ',
    "empty_token": "",
    "empty.sqlite": "",
    "plain.sqlite": "this is no database, but some text that is long enough to be looked at",
}
#: A line, and what its sentence has in it, `*` being anything. `&`: in a process of its own, for what starts something.
#: Variables stand before the command; a status that is not 2 before the words.
TABLE: Final = """
ask | QUESTION; to see what can be typed
ask '' | the question is empty; type: callboard ask
ask where is it | put the question in quotes
ask x --modle openai/gpt-5 | unrecognized arguments: --modle; did you mean '--model'?
ask --modle openai/gpt-5 where is it | unrecognized arguments: --modle; did you mean '--model'?
ask -m openai/gpt-5 x | unrecognized arguments: -m; to see what can be typed: callboard ask --help
ask x --timeout 10 | unrecognized arguments: --timeout; to see what can be typed: callboard ask --help
ask x --api-key sk-secret | unrecognized arguments: --api-key; to see what can be typed: callboard ask --help
ask x --output json | unrecognized arguments: --output; to see
ask x --tool raises.py | unrecognized arguments: --tool; did you mean '--tools'?
ask x --model | --model: expected one argument
ask x --model gpt-5 | must be "provider/model"; did you mean "openai/gpt-5"?
ask x --model openai/ | must be "provider/model", such as
ask x --model /gpt-5 | must be "provider/model", such as
ask x --model opnai/gpt-5 | There is no provider 'opnai'
ask x --model openai/gpt-5 | set the environment variable OPENAI_API_KEY
ask x --model anthropic/claude-sonnet-5-5 | set the environment variable ANTHROPIC_API_KEY
ask x --model copilot/gpt-5 | run `callboard login copilot`
ask x --model ollama/qwen3 --base-url nonsense | --base-url: must be an address with http:// or https://
ask x --workspace no/such | no/such; name one that exists
ask x --workspace weather.py | is not a folder; name one that exists
ask x --image no.png | --image: no.png cannot be read: No such file
ask x --image notes.txt | give it as --file
ask x --file . | --file: . is not a file; name one
ask x --tools no.py | --tools no.py: there is no such file
ask x --tools notes.txt | it is not a Python file (.py)
ask x --tools raises.py | --tools raises.py: line 1: ValueError: at import
ask x --tools not_python.py | --tools not_python.py: line 1: SyntaxError
ask x --tools no_tools.py | defines no tool; put @tool before a function
ask x --tools untyped.py | parameter 'a' has no type; annotate it
ask x --tools missing_module.py | No module named 'no_such_module'
ask x --trust total | invalid choice: 'total' (choose from careful, balanced, manual
ask x --mode plann | invalid choice: 'plann' (choose from ask, plan, build); did you mean 'plan'?
ask x --confine always | invalid choice: 'always' (choose from off, auto, required
ask x --profile nobody | there is no profile 'nobody' (--profile); write [profiles.nobody] in
ask x --config no.toml | there is no configuration file no.toml; --config names one that is there
ask x --config . | is not a regular file; remove it or make it one
ask x --config broken.toml | broken.toml is not valid TOML: * (at line 1, column 9); correct it
ask x --config two_models.toml | two_models.toml is not valid TOML: * (at line 3
ask x --config unknown_key.toml | 'modle' in [default] of unknown_key.toml: *; did you mean 'model'?
ask x --config unknown_section.toml | put settings below [default] or [profiles.NAME]
ask x --config wrong_type.toml | 'max_steps' in [default] of wrong_type.toml: Input should be a valid integer
ask x --config negative.toml | 'max_steps' in [default] of negative.toml: * greater than or equal to 1
ask x --config bad_timeout.toml | 'approval_timeout_seconds' in [default] of * should be a valid number
ask x --config bad_rule.toml | rules.0.decision: Input should be 'allow', 'ask' or 'deny'
ask x --config bad_trust.toml | 'trust' in [default] of * should be 'careful', 'balanced' or 'manual'
ask x --config bad_model.toml | 'model' in [default] of bad_model.toml: must be "provider/model"
ask x --config bad_server.toml | there is no 'commnad' in it; did you mean 'command'?
ask x --config bad_proxy.toml | must be the address of an HTTP proxy, such as
& ask x --base-url http://127.0.0.1:1 | 1 127.0.0.1:1 refused the connection; check the address
& ask x --continue | name the journal: --journal PATH
& ask x --conversation none | name the journal: --journal PATH
& ask x --journal new.sqlite --conversation none | `callboard journal list` shows them
& ask x --journal plain.sqlite | is not a journal, or nothing of it is sound: choose another path
ask x --journal . | is a folder; name a file in it
& ask x --journal no/such/folder/j.sqlite | there is no folder *: make it first
ask x --journal mysql://localhost/x | must be a path or postgresql://
ask x --continue --conversation a | not allowed with argument --continue
& HTTPS_PROXY=http://127.0.0.1:1 OPENAI_API_KEY=k ask x --model openai/x | 1 refused the connection; * the proxy
index no/such | name one that exists
index weather.py | is not a folder; name one that exists
index --watching | unrecognized arguments: --watching; did you mean '--watch'?
doctor --model nobody/x | known providers are
doctor --profile nobody | write [profiles.nobody] in
login | provider; to see what can be typed
login openai | invalid choice: 'openai' (choose from copilot
login copilot | set CALLBOARD_COPILOT_CLIENT_ID
tools --workspace no/such | name one that exists
tools --tools no.py | there is no such file
trust --yes | unrecognized arguments: --yes; to see what can be typed: callboard trust --help
tools --josn | unrecognized arguments: --josn; did you mean '--json'?
& edits approve | no edits wait in this workspace
& edits approve none | there is no proposal 'none'; list the proposals
& edits deny none | there is no proposal 'none'; list the proposals
edits apply | invalid choice: 'apply' (choose from list, approve, deny
trust --workspace no/such | name one that exists
rules --remove 7 | there are 0 for this workspace (`callboard rules`)
rules --remove first | 'first' is no whole number
journal | ACTION; to see what can be typed
journal lst | did you mean 'list'?
journal list | name the journal: --journal PATH
journal list --journal no.sqlite | no.sqlite; name one that is there
journal list --journal plain.sqlite | is not a journal, or nothing of it is sound: choose another path
journal list --journal new.sqlite --limit 0 | --limit: '0' is below 1
journal list --journal new.sqlite --since yesterday | write 2026-11-23 or 2026-11-23T12:30
journal list --journal empty.sqlite --metadata user | --metadata must be NAME=VALUE, got 'user'
journal show none --journal empty.sqlite | is empty, and not a journal
journal export none --journal empty.sqlite | is empty, and not a journal
journal delete none --journal empty.sqlite | `callboard journal list` shows them
journal import half.json --journal empty.sqlite | half.json: * give what `callboard journal export` has printed
journal import notes.txt --journal empty.sqlite | notes.txt: * give what `callboard journal export` has printed
journal import no.json --journal empty.sqlite | no.json cannot be read: No such file
journal replay none --journal empty.sqlite | is empty, and not a journal
journal verify --journal no.sqlite | no.sqlite; name one that is there
journal compact --journal empty.sqlite --keep-days -1 | is not a number of days above 0
journal usage --journal empty.sqlite --by week | invalid choice: 'week' (choose from day, model, tool, conversation
mcp --http nonsense | nonsense:8340 cannot be listened on: *; name another HOST:PORT
mcp --http 127.0.0.1:99999 | give HOST:PORT with a port from 0 to 65535
mcp --http 127.0.0.1:0 --token-file . | . cannot be used: Is a directory; name a file
mcp --tools raises.py | --tools raises.py: line 1: ValueError: at import
serve --port 99999 | --port: Input should be less than or equal to 65535
serve --port http | 'http' is no whole number
& CALLBOARD_TOKEN=a-token-0123456789 serve --host nowhere.invalid | there is no machine of that name
& CALLBOARD_TOKEN=a-token-0123456789 serve --host 192.0.2.1 --port 0 | it is no address of this machine
& CALLBOARD_TOKEN=a-token-0123456789 serve --port TAKEN | another program listens there; name another port
serve --log-format xml | invalid choice: 'xml' (choose from text, json
serve --config bad_daemon.toml | 'prot' in [daemon] of bad_daemon.toml: *; did you mean 'port'?
serve --config bad_port.toml | 'port' in [daemon] of bad_port.toml: Input should be less than or equal to 65535
serve --config bad_tenant.toml | 'workspac' in [tenants.ann] of bad_tenant.toml: *; did you mean 'workspace'?
serve --config bad_limits.toml | 'limits.head_seconds' in [daemon] of * should be greater than 0
serve --config bad_alias.toml | 'models' in [daemon] of bad_alias.toml: 'gpt-5' must be "provider/model"
serve --config bad_embedding.toml | 'embedding_model' in [daemon] of * 'small' must be "provider/model"
serve --config no_folder.toml | 'workspace' in [tenants.ann] of no_folder.toml: there is no folder /no/such/folder
& serve --config no_tools_file.toml | nowhere.py: there is no such file
serve --workspace no/such | --workspace: there is no folder
serve --profile nobody | write [profiles.nobody] in
CALLBOARD_TOKEN=short serve --port 0 | CALLBOARD_TOKEN must have 16 or more characters
tokens | ACTION; to see what can be typed
tokens make --scope all | invalid choice: 'all' (choose from use, approve, admin
tokens make --tenant nobody | the configuration has no tenant 'nobody'; it has: default
tokens remove none | `callboard tokens list` shows them
models opnai | there is no provider 'opnai'; did you mean 'openai'?
models --provider | unrecognized arguments: --provider; did you mean '--providers'?
completion tcsh | invalid choice: 'tcsh' (choose from bash, zsh, fish
& chat --url http://127.0.0.1:1 | the daemon wants a token: CALLBOARD_TOKEN, or --token-file FILE
& chat --url http://127.0.0.1:1 --token-file no | --token-file: no cannot be read: No such file
& chat --url http://127.0.0.1:1 --token-file empty_token | --token-file: empty_token: a token is one word
& CALLBOARD_TOKEN=a-token-0123456789 chat --url nonsense | --url: 'nonsense': write http://127.0.0.1:8330
& CALLBOARD_TOKEN=a-token-0123456789 chat --url http://127.0.0.1:1 | 1 is `callboard serve` running there?
& acp | stdin is no pipe: `callboard acp` is started by an editor
CALLBOARD_MODEL=gpt-5 ask x | CALLBOARD_MODEL: must be "provider/model"
CALLBOARD_WORKSPACE=/no/such ask x | CALLBOARD_WORKSPACE: there is no folder /no/such; name one
CALLBOARD_PROFILE=nobody ask x | there is no profile 'nobody' (CALLBOARD_PROFILE)
& CALLBOARD_JOURNAL=/no/such/j.sqlite ask x | there is no folder /no/such: make it first
CALLBOARD_BASE_URL=nonsense CALLBOARD_MODEL=openai-compatible/x ask x | CALLBOARD_BASE_URL: must be an address
CALLBOARD_MODLE=openai/x ask x | CALLBOARD_MODLE is not read; did you mean CALLBOARD_MODEL?
CALLBOARD_WORKSPACES=. index | CALLBOARD_WORKSPACES is not read; did you mean CALLBOARD_WORKSPACE?
CALLBOARD_MAX_STEPS=3 ask x | CALLBOARD_MAX_STEPS is not read; set 'max_steps' in the configuration file
CALLBOARD_TRUST=careful serve | CALLBOARD_TRUST is not read; set 'trust' in the configuration file
idnex | did you mean 'index'?
dance | invalid choice: 'dance' (choose from ask, chat, acp
--conifg x ask y | unrecognized arguments: --conifg; did you mean '--config'?
"""
ROWS: Final = [tuple(row.split(" | ", 1)) for row in TABLE.strip().splitlines()]


def test_there_are_no_fewer_than_there_were() -> None:
    assert len(ROWS) >= 94
    assert len({line for line, _ in ROWS}) == len(ROWS)


@pytest.mark.timeout(60)
@pytest.mark.parametrize(("line", "says"), ROWS, ids=[line for line, _ in ROWS])
def test_it_ends_in_one_sentence(
    line: str, says: str, here: Any, callboard: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    lay_out(callboard.workspace, line)
    *variables, command = re.fullmatch(r"(?:& )?((?:[A-Z_]+=\S* )*)(.*)", line).groups()  # type: ignore[union-attr]
    for each in shlex.split(" ".join(variables)):
        name, _, value = each.partition("=")
        monkeypatch.setenv(name, value)
        callboard.environment[name] = value
    with socket.create_server(("127.0.0.1", 0)) as taken:
        words = shlex.split(command.replace("TAKEN", str(taken.getsockname()[1])))
        ran = callboard.run(*words) if line.startswith("& ") else here(*words)
    status, words_of = (int(says[0]), says[2:]) if says[:2] == "1 " else (USAGE, says)
    assert ran.status == status, ran.err
    assert ran.out == ""
    pattern = ".*".join(map(re.escape, words_of.split("*")))
    assert re.search(pattern, ran.sentence), ran.sentence


def lay_out(folder: Path, line: str) -> None:
    """The files that the line names, in the folder."""
    for name in FILES:
        if name in line:
            (folder / name).write_text(FILES[name])
