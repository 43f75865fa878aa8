"""Pure values and rules: no I/O, no clock, no threads, no randomness, no Pykka.

Read in this order: `content` (what a conversation is made of), `model` (what a model is asked and says), `tools` (what
a tool is), `events` and `commands` (what goes into a session and what comes out), `states` (the tables), and then the
core: `machine` (the session), `step` (the model's turn and its calls), `prompt` (what the model sees) and `budgets`.
"""
