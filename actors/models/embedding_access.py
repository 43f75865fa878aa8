"""The embedding model of the settings, reached as they say: for code search, and for programs that embed texts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from callboard.actors.settings import Settings
from callboard.protocol.errors import UsageError
from callboard.providers.provider_registry import ENVIRONMENT, embeddings_for

if TYPE_CHECKING:
    from callboard.providers.openai.embeddings import EmbeddingApi


def embedding_api(settings: Settings, model: str) -> EmbeddingApi:
    """The API of "provider/model", with the provider's key and address. The caller closes it.

    Raises UsageError for a provider without embeddings, and for a key that only a callback gives.
    """
    provider = model.partition("/")[0]
    connection = settings.connection(provider)
    if callable(connection.api_key):
        raise UsageError(f"embedding_model: the key of {provider} comes from a callback, which embeddings cannot use")
    return embeddings_for(
        model,
        base_url=settings.embedding_base_url or connection.base_url,
        api_key=settings.key_for(provider),
        headers=connection.headers,
        proxy=ENVIRONMENT if connection.proxy is None else connection.proxy,
        verify=True if connection.verify is None else connection.verify,
        transport=connection.transport,
    )
