"""Every number that bounds something, with its unit and its reason."""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

#: A tool call, unless its tool says otherwise.
DEFAULT_TOOL_TIMEOUT_SECONDS: Final = 30.0
#: The longest deadline a tool may ask for: ten minutes is the longest anyone waits for an answer that cannot stream.
MAX_TOOL_TIMEOUT_SECONDS: Final = 600.0
#: Between the polite end (cancel, SIGTERM) and SIGKILL: enough for a `finally` that closes a file, no more.
TOOL_GRACE_SECONDS: Final = 0.25
#: The session's own backstop behind the dispatcher's deadline: grace, the kill (3-9 ms measured) and two busy loops.
CALL_BACKSTOP_SECONDS: Final = 2.0
#: From when a call with the effect `transaction` should have ended to the answer of what commits it. A commit takes
#: milliseconds; a server that restarts is waited for.
COMMIT_SECONDS: Final = 20.0
#: A wait for someone outside, an approval or the result of a deferred call: who is asked in the evening answers in the
#: morning.
DEFAULT_WAIT_SECONDS: Final = 86_400.0
#: The longest such wait: a week, in which a person is back at work. What takes longer is better asked again later.
MAX_WAIT_SECONDS: Final = 604_800.0
#: A timer that fires this much before its time is right, not early: the resolution of event loops and system clocks.
CLOCK_TOLERANCE_SECONDS: Final = 0.001

#: One whole request: as long as the longest tool, thrice.
DEFAULT_REQUEST_TIMEOUT_SECONDS: Final = 1_800.0
#: The longest one that can be asked for, a year. Clocks and timers of the system take about 290.
MAX_REQUEST_SECONDS: Final = 31_536_000.0
#: Model calls in one request. Runs that need more are nearly always loops.
DEFAULT_MAX_STEPS: Final = 32
#: Calls the model may ask for in one turn; beyond it the turn is malformed: 10,000 calls are an attack or a bug.
MAX_CALLS_PER_STEP: Final = 128
#: The same call with the same result so many times in a row: the next is not run, the one after it ends the request.
#: A model that polls may see the same result twice before it changes.
REPEATED_CALL_LIMIT: Final = 3
#: Calls whose last result is remembered for that: eight full steps. Longer loops are ended by the other limits alone.
MAX_REMEMBERED_CALLS: Final = 1_024
#: Requests that one model call of a step may take: two cure nearly all passing faults, and after four the provider is
#: down. A supervisor bears three failures in a row too.
MAX_ATTEMPTS: Final = 4
#: Times one call is handed to a dispatcher: likewise. A call that four of them did not outlive is what killed them.
MAX_CALL_SENDS: Final = 4

#: Before a lost model call is asked again, by the losses in a row: a crashed actor is back within milliseconds; one
#: that crashes again needs longer, and a restart of the whole tree takes about a second.
MODEL_LOST_PAUSES_SECONDS: Final = (0.1, 0.4, 1.6)
#: Losses of a step's model call in a row. A process that ends (a deploy, a kill) is no fault of the requests in it, so
#: they outlive many of these; but one that makes its process crash each time must end.
MAX_MODEL_LOSSES: Final = 32
#: Tokens that one model call can have used. The largest contexts hold 10 million: a provider that says more is wrong.
MAX_CALL_TOKENS: Final = 100_000_000
#: US dollars that one model call can have cost; the dearest full context costs less than 1,000.
MAX_CALL_COST: Final = 10_000.0

#: No byte from the model for this long is an error, not a wait: reasoning models send keep-alives well within a minute.
STREAM_IDLE_TIMEOUT_SECONDS: Final = 90.0
#: One model call from first to last byte.
STREAM_TOTAL_TIMEOUT_SECONDS: Final = 600.0

#: One result handed to a model; about 250,000 tokens, more than any context takes.
MAX_RESULT_BYTES: Final = 1_000_000
#: Text, thinking and arguments of one model turn; pictures and sound count as the response does. The longest answers
#: that models can write (128,000 tokens) take less than 1 MB; the largest arguments of one call fit twice.
MAX_ANSWER_BYTES: Final = 8 * 1024 * 1024
#: What each part of a turn (a block of text, a call) counts besides its text, so that a turn of empty parts is bounded
#: too: 8,192 of them.
ANSWER_PART_BYTES: Final = 1024
#: One provider response line or JSON document: 64 MiB holds the largest image answers seen.
MAX_RESPONSE_BYTES: Final = 64 * 1024 * 1024
#: The longest wait that a provider may ask for. Rate limits are per minute, so a wait of that length can help; a longer
#: one would hold a request up, or all requests of a credential, on one server's word.
MAX_RETRY_AFTER_SECONDS: Final = 60.0
#: What is kept of a tool's own stdout and stderr: the end of it, for a person who looks for the cause of a failure.
MAX_TOOL_OUTPUT_BYTES: Final = 65_536
#: A message of progress: some lines for a person.
MAX_PROGRESS_BYTES: Final = 1_024
#: Between two reports of progress of one call that a reader is shown: ten a second look like motion.
PROGRESS_PAUSE_SECONDS: Final = 0.1
#: Data (heap and private mappings) of one process that a tool runs in; enough for pandas and a small model.
TOOL_MEMORY_BYTES: Final = 4 * 1024 * 1024 * 1024
#: Child processes of one pool. They mostly wait for something; each costs 5-10 MB of its own.
MAX_TOOL_PROCESSES: Final = 32
#: Calls of one tool that run at the same time unless it says otherwise, by isolation. Processes and threads: a quarter
#: of their pool, so that a tool that hangs leaves room for the others. Tasks cost next to nothing, and mostly wait.
TOOL_CONCURRENCY: Final = MappingProxyType({"process": 8, "thread": 16, "task": 1_000, "caller": 1_000})
#: Arguments of one call, as JSON text.
MAX_ARGUMENT_BYTES: Final = 4 * 1024 * 1024
#: Of the arguments of a call that is not complete, what its model sees of them later: where they go wrong, mostly.
MAX_HALF_CHARS: Final = 4_000
#: Answers of a request that may fail to fit the form asked for: the first, and two that are told the error.
OUTPUT_TRIES: Final = 3
#: Of what is wrong with an answer, what the model and people are told: some twenty places.
MAX_MISFIT_CHARS: Final = 2_000
#: What is kept of a provider's bad answer in an error.
ERROR_SNIPPET_CHARS: Final = 300
#: Of a model's window, what is kept for the answer where the request does not say how long it may be: a quarter, ...
ANSWER_WINDOW_SHARE: Final = 0.25
#: ... and of large windows no more than this: the longest answers in prose have about 8,000 tokens, and models that
#: think first take as many again.
MAX_ANSWER_ROOM_TOKENS: Final = 16_384
#: Of a model's window, what one tool result may fill: with a quarter for the answer, a quarter is left for the rest.
MAX_RESULT_WINDOW_SHARE: Final = 0.5
#: Input tokens as the provider counts them, by our count of them. Beyond these bounds its number is not believed: the
#: estimate is at most about four times a true count (Hindi in o200k), and no tokenizer is known that makes three tokens
#: where those that the estimate was fitted to make one.
TOKEN_RATIO_BOUNDS: Final = (0.2, 3.0)
#: What a provider may add to each prompt besides: its own instructions for tools (Anthropic's: 300 to 700 tokens).
MAX_FRAMING_TOKENS: Final = 1_000
#: Only prompts of this size tell something about other texts: in shorter ones that framing decides.
MIN_RATIO_TOKENS: Final = 1_000
#: Of a prompt that the model refused as too long, what is sent the second time, by our count: the estimate was too low,
#: by up to a third for texts that it was not fitted to.
OVERFLOW_SHARE: Final = 0.75
