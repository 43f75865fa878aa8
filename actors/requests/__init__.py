"""One request: the session that answers it, its conversation, and how its events reach the asker."""
