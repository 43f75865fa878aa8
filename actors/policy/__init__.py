"""What a call would touch: paths resolved, commands parsed, addresses looked up, and judged by the policy."""
