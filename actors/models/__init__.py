"""The model side: the actor that makes all model calls, and one model call."""
