"""Pure values and rules: no I/O, no clock, no threads, no randomness, no Pykka.

Read in this order: `content` (what a conversation is made of), `stream` and `model` (what a model says), `tools` (what
a tool is), `events` and `commands` (what goes into a session and what comes out), `states` (the tables), `session`.
"""
