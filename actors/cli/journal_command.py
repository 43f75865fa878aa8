"""`callboard journal`: what is in a journal, what it costs, and what is taken out of it.

Reading works beside a process that writes it; what changes something needs a file that no process has open.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import Final

from msgspec.structs import asdict

from callboard.actors.cli import journal_replay
from callboard.actors.cli.arguments import STDIN, place_of, settings_of
from callboard.actors.cli.columns import columns_of, counted, print_wrapped, table
from callboard.actors.cli.terminal import cleaned, escaped, print_json, print_line, printable
from callboard.actors.journal import journal_check
from callboard.actors.journal.at_rest import journal_at
from callboard.actors.journal.journal_handle import JournalHandle
from callboard.actors.journal.journal_records import RequestLog
from callboard.actors.journal.saved_conversations import AmbiguousId, ConversationInfo, shown_id, whole_id
from callboard.actors.journal.usage_report import UsageLine, UsageReport
from callboard.protocol.content import AssistantMessage, Message, SystemMessage, ToolMessage, UserMessage
from callboard.protocol.errors import RuntimeFailure, UsageError
from callboard.protocol.masking import for_log

#: Bytes of a file that is imported; a larger one is split, or merged by opening the journal itself.
MAX_IMPORT_BYTES: Final = 1 << 30
_UNKNOWN: Final = "unknown"


def run(options: argparse.Namespace, known: dict[str, object]) -> None:
    """Do the chosen thing."""
    place = place_of(settings_of(options))
    if (of_file := _OF_FILES.get(options.action)) is not None:
        if isinstance(place, str):
            raise UsageError(f"`callboard journal {options.action}` is for journals in a file, not on a server")
        of_file(place, options)
        return
    if options.action == "replay":
        _replay(place, options)
        return
    _ACTIONS[options.action](JournalHandle.open(place, makes=options.action == "import"), options)


# -- reading


def _list(journal: JournalHandle, options: argparse.Namespace) -> None:
    found = journal.conversations(
        options.limit,
        text=options.text,
        metadata=metadata_of(options.metadata),
        since=options.since,
        until=options.until,
    )
    if options.json:
        print_json([asdict(each) for each in found])
    elif found:
        _print_table(("ID", "LAST QUESTION", "MESSAGES", "TITLE"), map(_info_cells, found))
    else:
        print_line("no conversations")


def _info_cells(info: ConversationInfo) -> tuple[str, ...]:
    note = " (has not ended)" if info.open_request is not None else ""
    damage = f" (damaged: {info.damage})" if info.damage else ""
    title = printable(info.title + note + damage)
    return printable(shown_id(info.id)), _short_time(info.last_at), str(info.messages), title


def _print_table(headings: tuple[str, ...], rows: Iterable[tuple[str, ...]], cut: tuple[int, ...] = (-1,)) -> None:
    print_line(table([headings, *rows], columns_of(sys.stdout), cut))


def _show(journal: JournalHandle, options: argparse.Namespace) -> None:
    """A conversation, or a request, by its id."""
    own = _whole_id_of_either(journal, options.id)
    try:
        log = journal.request(own)
    except UsageError:
        conversation = journal.conversation(own, at=_message_id(journal, own, options.at))
        if options.json:
            print_line(escaped(conversation.to_json()))
            return
        for message_id, message in zip(conversation.ids, conversation.messages, strict=True):
            print_wrapped(f"[{_shown_message_id(message_id)}] {_shown_message(message)}", None)
        return
    if options.json:
        print_json(_request_as_json(log))
    else:
        print_wrapped("\n".join(_request_lines(log)), "    ")


def _whole_id_of_either(journal: JournalHandle, given: str) -> str:
    """Of a request or a conversation. Raises AmbiguousId, also where one of each begins so."""
    request, conversation = journal.whole_request_id(given), journal.whole_conversation_id(given)
    if given not in (request, conversation):
        named = f"{request[: len(given) + 4]}…, {conversation[: len(given) + 4]}…"
        raise AmbiguousId(f"a request and a conversation begin with {given!r} ({named}): give more of the id")
    return conversation if request == given else request


def _message_id(journal: JournalHandle, conversation_id: str, given: str | None) -> str | None:
    """Of --at: the one message of the conversation that begins so."""
    if given is None:
        return None
    known: Sequence[str] = ()
    with contextlib.suppress(UsageError):  # a damaged one is read up to a message that is given whole
        known = journal.conversation(conversation_id).ids
    request, slash, rest = given.partition("/")
    requests = {each.partition("/")[0] for each in known}
    whole = whole_id(request, lambda part: [each for each in requests if each.startswith(part)], "request")
    return f"{whole}{slash}{rest}"


def _shown_message_id(whole: str) -> str:
    """That of its request, and which message of it."""
    request, slash, rest = whole.partition("/")
    return printable(f"{shown_id(request)}{slash}{rest}")


def _shown_message(message: Message) -> str:
    match message:
        case UserMessage():
            return f"user: {_text(message.text)}"
        case SystemMessage():
            return f"system: {_text(message.text)}"
        case ToolMessage():
            return f"result of {printable(message.name)}: {_text(message.content)}"
        case AssistantMessage():
            calls = [
                f"calls {printable(each.name)} {printable(for_log(each.arguments))}" for each in message.tool_calls
            ]
            return "\n  ".join([f"assistant: {_text(message.text)}", *calls])


def _text(text: str) -> str:
    return cleaned(for_log(text))


def _request_as_json(log: RequestLog) -> Mapping[str, object]:
    end = log.end
    finish = end.finish if end is not None else None
    return {
        "request_id": log.request_id,
        "conversation_id": log.begins.conversation_id,
        "begun_at": log.begins.begun_at,
        "model": log.begins.model,
        "metadata": dict(log.begins.metadata),
        "events": [{"number": each.number, "event": type(each.event).__name__} for each in log.records],
        "ended_at": end.ended_at if end is not None else None,
        "outcome": finish.outcome if finish is not None else None,
        "text": for_log(finish.text) if finish is not None else "",
        "failure": end.failure if end is not None else "",
        "notes": list(end.notes) if end is not None else [],
        "damage": log.damage,
    }


def _request_lines(log: RequestLog) -> list[str]:
    told = _request_as_json(log)
    lines = [f"{name}: {printable(str(told[name]))}" for name in ("request_id", "conversation_id", "model")]
    lines.append(f"began: {_shown_time(log.begins.begun_at)}")
    lines += [f"  {each.number}  {_shown_time(each.written_at)}  {type(each.event).__name__}" for each in log.records]
    if log.end is None:
        lines.append("it has not ended")
    else:
        lines.append(f"ended: {_shown_time(log.end.ended_at)}  {told['outcome'] or printable(log.end.failure)}")
        lines += [f"note: {printable(note)}" for note in log.end.notes]
    if log.damage:
        lines.append(f"damaged: {printable(log.damage)}")
    return lines


def _requests(journal: JournalHandle, options: argparse.Namespace) -> None:
    found = journal.requests(options.limit, before=options.until)
    if options.json:
        print_json([asdict(each) for each in found])
        return
    if not found:
        print_line("no requests")
        return
    rows = []
    for each in found:
        outcome = each.outcome or ("failed" if each.ended_at is not None else "has not ended")
        rows.append((printable(shown_id(each.request_id)), _short_time(each.begun_at), outcome, printable(each.model)))
    _print_table(("ID", "BEGAN", "OUTCOME", "MODEL"), rows)


def _search(journal: JournalHandle, options: argparse.Namespace) -> None:
    found = journal.search(
        " ".join(options.words),
        options.limit,
        metadata=metadata_of(options.metadata),
        since=options.since,
        until=options.until,
    )
    if options.json:
        print_json([asdict(each) for each in found])
        return
    for each in found:
        place = f"{printable(shown_id(each.conversation_id))}  {_shown_message_id(each.message_id)}"
        print_wrapped(f"{place}  {each.role}: {printable(each.snippet)}", "    ")
    if not found:
        print_line("nothing found")


def _usage(journal: JournalHandle, options: argparse.Namespace) -> None:
    report = journal.usage(
        options.by or ("day", "model"),
        since=options.since,
        until=options.until,
        model=options.of_model,
        tool=options.tool,
        conversation_id=journal.whole_conversation_id(options.conversation),
    )
    if options.json:
        print_line(escaped(report.as_json()))
    elif options.csv:
        sys.stdout.write(cleaned(report.as_csv().replace("\r\n", "\n")))
    else:
        _print_usage(report)


def _print_usage(report: UsageReport) -> None:
    headings = (*(each.upper() for each in report.by), "REQUESTS", "TOKENS IN", "TOKENS OUT", "US DOLLARS")
    rows = [_usage_cells(line, report) for line in report.lines]
    total = _usage_cells(report.total, report)
    rows.append(("total", *total[1:]) if report.by else total)
    _print_table(headings, rows, cut=tuple(range(len(report.by))) or (-1,))
    for note in _usage_notes(report):
        print_wrapped(note)


def _usage_notes(report: UsageReport) -> Iterator[str]:
    total = report.total
    failed = f", {total.failed_tool_calls:,} of them failed" if total.failed_tool_calls else ""
    yield f"{counted(total.model_calls, 'model call')}, {counted(total.tool_calls, 'tool call')}{failed}"
    if unknown := total.unknown_usage:
        yield f"the tokens of {counted(unknown, 'model call')} are not known: they are not in these numbers"
    if unknown := total.unknown_cost:
        yield f"the cost of {counted(unknown, 'model call')} is not known: it is not in these numbers"
    if running := report.running:
        has = counted(running, "request has", "requests have")
        yield f"{has} not ended: what was used so far is in these numbers"
    if report.unreadable:
        records = counted(report.unreadable, "request")
        yield f"the records of {records} cannot be read: they are not in these numbers"


def _usage_cells(line: UsageLine, report: UsageReport) -> tuple[str, ...]:
    used, cost = line.usage, line.cost
    return (
        *(printable(shown_id(getattr(line, name))) for name in report.by),
        f"{line.requests:,}",
        _UNKNOWN if used is None else f"{used.input_tokens:,}",
        _UNKNOWN if used is None else f"{used.output_tokens:,}",
        _UNKNOWN if cost is None else f"{cost:.6f}",
    )


# -- in and out


def _export(journal: JournalHandle, options: argparse.Namespace) -> None:
    """One conversation as JSON, or all of it as JSON lines."""
    if options.id is not None:
        own = journal.whole_conversation_id(options.id)
        print_line(escaped(journal.conversation(own, at=_message_id(journal, own, options.at)).to_json()))
        return
    for line in journal.export():
        print_line(line)


def _import(journal: JournalHandle, options: argparse.Namespace) -> None:
    """What `export` printed, into a journal that is there or a new one."""
    text = _read(options.file)
    first = text.lstrip().partition("\n")[0]
    if '"callboard-journal"' in first:
        done = journal.import_lines(text.splitlines())
        left = f"; {done.left_out:,} of requests that had not ended left out" if done.left_out else ""
        print_line(f"{counted(done.rows, 'row')} added{left}")
        if done.open_requests:
            print_wrapped(
                f"{counted(done.open_requests, 'request')} had not ended: what starts with this journal goes on with "
                "what had not, so nothing must start with the other one"
            )
    else:
        print_line(printable(_imported(journal, text, options.file)))


def _imported(journal: JournalHandle, text: str, file: Path) -> str:
    try:
        return journal.import_conversation(text)
    except UsageError as error:
        raise UsageError(f"{file}: {error}; give what `callboard journal export` has printed") from error


def _read(file: Path) -> str:
    try:
        with sys.stdin.buffer if str(file) == STDIN else file.open("rb") as source:
            data = source.read(MAX_IMPORT_BYTES + 1)
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror or error}") from error
    if len(data) > MAX_IMPORT_BYTES:
        raise UsageError(f"{file} has more than {MAX_IMPORT_BYTES:,} bytes; import it in parts")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise UsageError(f"{file} is not UTF-8: {error.reason} at byte {error.start}") from error


def _delete(journal: JournalHandle, options: argparse.Namespace) -> None:
    for each in [journal.whole_conversation_id(given) for given in options.ids]:  # all are known before one is deleted
        remark = journal.delete_conversation(each)
        print_wrapped(printable(f"deleted {each}" + (f" ({remark})" if remark else "")))


def _compact(journal: JournalHandle, options: argparse.Namespace) -> None:
    """Delete what is too old or too much, and give the space back."""
    settings = settings_of(options)
    days = options.keep_days if options.keep_days is not None else settings.journal_keep_days
    most = options.max_bytes if options.max_bytes is not None else settings.journal_max_bytes
    done = journal.clean_up(keep_days=days, max_bytes=most)
    logs, conversations = counted(done.logs, "request"), counted(done.conversations, "conversation")
    deleted = f"the logs of {logs} and {conversations} were deleted"
    if isinstance(settings.journal, str):
        print_wrapped(f"{deleted}; PostgreSQL's autovacuum frees their space")
    else:
        print_wrapped(f"{deleted}; {counted(journal.vacuum(), 'byte is', 'bytes are')} left")


# -- the file itself


def _verify(path: Path, options: argparse.Namespace) -> None:
    _report(journal_check.verify(path), options)


def _repair(path: Path, options: argparse.Namespace) -> None:
    _report(journal_check.repair(path), options)


def _report(report: journal_check.Report, options: argparse.Namespace) -> None:
    """Raises RuntimeFailure for a journal that is damaged."""
    if options.json:
        print_json({**asdict(report), "path": str(report.path), "is_sound": report.is_sound})
    else:
        records = counted(sum(report.records.values()), "sound record")
        print_wrapped(printable(f"{report.path}: {records}, {counted(report.open_requests, 'open request')}"))
        for line in report.repaired:
            print_wrapped(f"repaired: {printable(line)}")
        for each in report.set_aside:
            print_wrapped(f"set aside {_shown_time(each.found_at)}: {printable(each.what)}: {printable(each.why)}")
        for line in report.faults:
            print_wrapped(f"fault: {printable(line)}")
    if not report.is_sound:
        raise RuntimeFailure(
            f"the journal has {counted(len(report.faults), 'fault')}; `callboard journal repair` saves what is sound"
        )


def _replay(place: str | Path, options: argparse.Namespace) -> None:
    options.request = JournalHandle.open(place).whole_request_id(options.request)
    with closing(journal_at(place).reader()) as reader:
        journal_replay.replay(options, reader)


def metadata_of(typed: list[str]) -> dict[str, str]:
    """Of --metadata NAME=VALUE. Raises UsageError."""
    found: dict[str, str] = {}
    for each in typed:
        name, equals, value = each.partition("=")
        if not name or not equals:
            raise UsageError(f"--metadata must be NAME=VALUE, got {each!r}")
        found[name] = value
    return found


def _short_time(seconds: float) -> str:
    """In local time, to the minute."""
    return f"{datetime.fromtimestamp(seconds):%Y-%m-%d %H:%M}"


def _shown_time(seconds: float) -> str:
    """In local time, to the second."""
    return datetime.fromtimestamp(seconds).astimezone().isoformat(" ", "seconds")


_OF_FILES: Final[Mapping[str, Callable[[Path, argparse.Namespace], None]]] = {"verify": _verify, "repair": _repair}
_ACTIONS: Final[Mapping[str, Callable[[JournalHandle, argparse.Namespace], None]]] = {
    "list": _list,
    "show": _show,
    "requests": _requests,
    "search": _search,
    "usage": _usage,
    "export": _export,
    "import": _import,
    "delete": _delete,
    "compact": _compact,
}
