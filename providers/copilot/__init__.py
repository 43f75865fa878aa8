"""GitHub Copilot: its log-in, its short-lived tokens, and three wire APIs behind one account."""
