"""Can a model be asked this? Found out before anything is sent, by writing the first request without sending it.

That costs about what one request costs to write, so it is done only where a question says more than text.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from callboard.actors.models.llm_manager import Route
from callboard.protocol.errors import UsageError, said
from callboard.protocol.model import ModelRequest
from callboard.protocol.provider_options import ExtraFields, ProviderOptions
from callboard.providers.adapter import ChecksRequests


def suitable(routes: Sequence[Route], request: ModelRequest) -> tuple[tuple[Route, ...], tuple[str, ...]]:
    """The routes that can be asked this, and a note on each fallback that cannot: it is left out.

    Raises UsageError where the first one cannot.
    """
    first, *fallbacks = routes
    _check_kinds(routes, request.provider_options)
    _check(first, replace(request, provider_options=tuple(_without_provider(request.provider_options))))
    kept, notes = [first], []
    for route in fallbacks:
        try:
            if request.storage is not None and request.storage.previous_response_id and not _is_same(route, first):
                raise UsageError("it does not know the answer that previous_response_id names")
            _check(route, replace(request, provider_options=()))
            kept.append(route)
        except UsageError as error:
            notes.append(f"{route.name} is no fallback for this question: {error}")
    return tuple(kept), tuple(notes)


def _check(route: Route, request: ModelRequest) -> None:
    if isinstance(route.provider, ChecksRequests):
        try:
            route.provider.check(replace(request, model=route.model))
        except UsageError:
            raise
        except Exception as error:  # of an adapter written by a user
            raise UsageError(f"{route.name} cannot be asked this: its adapter failed: {said(error)}") from error


def _is_same(one: Route, other: Route) -> bool:
    return one.provider is other.provider


def _without_provider(options: Iterable[ProviderOptions]) -> Iterable[ProviderOptions]:
    """As the first route gets them: what is for one provider is for that of the model that is asked."""
    for each in options:
        yield replace(each, provider="") if isinstance(each, ExtraFields) else each


def _check_kinds(routes: Sequence[Route], options: Iterable[ProviderOptions]) -> None:
    """Raise UsageError for options that none of the models takes, and for two of a kind."""
    typed = [each for each in options if not isinstance(each, ExtraFields)]
    kinds = [type(each) for each in typed]
    if twice := [kind for kind in kinds if kinds.count(kind) > 1]:
        raise UsageError(f"provider_options has {twice[0].__name__} twice; say it once")
    if not typed or not all(isinstance(route.provider, ChecksRequests) for route in routes):
        return  # a provider of the user's own may know options of its own
    tables = [route.provider.own_options(route.model) for route in routes if isinstance(route.provider, ChecksRequests)]
    for each in typed:
        if not any(table.takes(each) for table in tables):
            kind = tables[0].kind
            takes = f"it takes {kind.__name__}" if kind else "use extra_body and extra_headers"
            name = type(each).__name__
            raise UsageError(f"provider_options: {name} are of another API than that of {routes[0].name}; {takes}")
