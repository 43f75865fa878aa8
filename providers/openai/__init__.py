"""OpenAI's two APIs, Chat Completions (with the many servers that speak it) and Responses, and embeddings."""
