"""What a request is given when it starts: the tools it may use and the limits it lives within."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from msgspec.structs import replace

from callboard.protocol import limits
from callboard.protocol.compaction import Compaction
from callboard.protocol.model import AudioOut, ModelRequest, PromptCache, ResponseStorage, Sampling, ToolChoice
from callboard.protocol.output import OutputMode, OutputSpec
from callboard.protocol.policy import Mode
from callboard.protocol.provider_options import ProviderOptions
from callboard.protocol.server_tools import ServerToolOffer
from callboard.protocol.tools import Decision, ToolContract, ToolDefinition, ToolSearch
from callboard.protocol.values import Value

#: Of a tool's contract: what a request decides by whether a call may run, may run again, and may steer the model.
JUDGED_BY: Final = ("risk", "effect", "needs_approval", "asks_because", "stages", "is_outside", "is_trusted")


class ToolOffer(Value, frozen=True):
    """A tool as one request sees it: fixed when the request starts."""

    definition: ToolDefinition
    contract: ToolContract = ToolContract()
    decision: Decision = Decision.ALLOW
    rule: str = ""
    """What the decision follows from, in words; of one to ask, why it is not known before the call."""
    confinement: str = ""
    """What its calls are held to, in a line for people; "" where that was not asked."""

    @property
    def is_shown(self) -> bool:
        """May the model know of it? A tool that the policy denies is kept only to answer a call of it as denied."""
        return self.decision is not Decision.DENY

    def changes_to(self, definition: ToolDefinition, contract: ToolContract) -> list[str]:
        """In words: what a request has shown to its model, or judged by, and what is different now. All else of a
        contract may change while a request runs."""
        changed = []
        if definition is not self.definition and definition != self.definition:
            changed.append("its description or its parameters")
        if contract is not self.contract:
            for name in JUDGED_BY:
                then, now = getattr(self.contract, name), getattr(contract, name)
                if then != now:
                    changed.append(f"its {name} ({then}, now {now})")
        return changed

    def of_no_use(self) -> ToolOffer:
        """As it is where the tool is not offered that it belongs to (`ToolContract.only_with`)."""
        rule = f"{self.definition.name} is of no use without {self.contract.only_with}, which is not offered"
        return replace(self, decision=Decision.DENY, rule=rule)


class ToolFallback(StrEnum):
    """What to do when the model, or its route, takes no tools."""

    RETRY_WITHOUT_TOOLS = "retry_without_tools"
    """Once, with a visible note."""
    FAIL = "fail"


class RequestOptions(Value, frozen=True, omit_defaults=False):
    """How one request is run. Budgets stop a run before they are passed, not after (I6)."""

    model: str
    """"provider/model"."""
    system_prompt: str = ""
    tool_prompt: str = ""
    """What the instructions say of the tools: behind `system_prompt`, and only where tools are offered."""
    timeout_seconds: float = limits.DEFAULT_REQUEST_TIMEOUT_SECONDS
    """Without the times in which the request only waits for approvals and for the results of deferred calls."""
    approval_timeout_seconds: float = limits.DEFAULT_WAIT_SECONDS
    """How long a call may wait for its approval; then it is denied, and the model reads that."""
    max_steps: int = limits.DEFAULT_MAX_STEPS
    token_budget: int | None = None
    """Input and output tokens of all steps together; None: unlimited."""
    cost_budget: float | None = None
    """US dollars of all steps together; None: unlimited. Needs both prices."""
    input_price: float | None = None
    """US dollars a token of the dearest model that may answer; None: not known. By these two is estimated what a step
    will cost, and what one has cost that does not say so."""
    output_price: float | None = None
    context_tokens: int | None = None
    """The model's window, input and output together: the history is cut, by whole atoms, to fit; None: unlimited. A
    smaller one that a model names when it refuses a prompt as too long counts for the rest of the request."""
    token_ratio: float = 1.0
    """The provider's input tokens by our count of them, learned from earlier requests; at least 1, since a lower ratio
    holds only for the text it was measured on."""
    sampling: Sampling = Sampling()
    prompt_cache: PromptCache = PromptCache.FIVE_MINUTES
    tool_choice: ToolChoice = ToolChoice()
    parallel_tool_calls: bool | None = None
    server_tools: tuple[ServerToolOffer, ...] = ()
    storage: ResponseStorage | None = None
    service_tier: str = ""
    images_out: bool = False
    audio_out: AudioOut | None = None
    provider_options: tuple[ProviderOptions, ...] = ()
    tool_fallback: ToolFallback = ToolFallback.RETRY_WITHOUT_TOOLS
    tools_budget_tokens: int | None = None
    """What the tools may take of a prompt; those beyond it the model finds by searching (tool_search.py). None: all are
    shown, but those that are marked `deferred`."""
    takes_tools: bool = True
    """False: the model has refused tools not long ago, and is asked without them from the beginning."""
    output: OutputSpec | None = None
    """The form that the answer must have; None: any text."""
    repeated_call_limit: int = limits.REPEATED_CALL_LIMIT
    """Equal results in a row after which a call is not run again; 0: no limit."""
    history_share: float = 1.0
    """Of the room for a prompt, what the messages before the question may take."""
    result_share: float = limits.MAX_RESULT_WINDOW_SHARE
    """Of the window, what one tool result may take."""
    compaction: Compaction | None = None
    """How a long conversation is kept within the window besides cutting; None: it is only cut."""
    ask_after_untrusted: bool = False
    """May a call that does more than read run unasked once the request has read text that is not its owner's? True: it
    is asked about."""
    expand_search: bool = False
    """Is the model asked for further words before the first search of the request (search_words.py)?"""
    max_attempts: int = limits.MAX_ATTEMPTS
    """Requests that may be sent for one model call of a step: the first one, retries, fallback models, the try without
    tools, turns asked again and calls that were lost all count. A tool call that was lost runs no more often either."""
    continue_cut_answers: int = 0
    """How often at most an answer that was cut at the limit of output tokens is gone on with (cut_answer.py)."""
    mode: Mode | None = None
    """What the request is for; None: what the runtime's policy says of all."""


def instructions(options: RequestOptions, *, has_tools: bool, mode: OutputMode | None = None) -> str:
    """The system prompt; what it says of the tools only where tools are offered, of the answer's form by its mode."""
    form = options.output.instructions(mode) if options.output is not None else ""
    parts = (options.system_prompt, options.tool_prompt if has_tools else "", form)
    return "\n\n".join(part for part in parts if part)


def request_of(
    options: RequestOptions,
    model: str,
    tools: tuple[ToolDefinition, ...],
    tool_choice: ToolChoice,
    *,
    response_schema: Mapping[str, object] | None = None,
    sampling: Sampling | None = None,
    tool_search: ToolSearch | None = None,
) -> ModelRequest:
    """How a model is asked with these options, still without messages; `sampling` in place of theirs."""
    return ModelRequest(
        model,
        (),
        tools,
        tool_choice,
        options.parallel_tool_calls if tools else None,
        response_schema,
        sampling=sampling or options.sampling,
        provider_options=options.provider_options,
        server_tools=options.server_tools,
        prompt_cache=options.prompt_cache,
        storage=options.storage,
        service_tier=options.service_tier,
        images_out=options.images_out,
        audio_out=options.audio_out,
        tool_search=tool_search,
    )
