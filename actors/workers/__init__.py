"""Where tool calls run: `pool` decides when, `process`, `task` and `thread` how.

Nothing is imported here: a child process needs four of these modules and should not pay for the others.
"""
