"""Vertex AI: Gemini and Claude at Google Cloud, and how one signs in there."""
