"""Other people's agent runtimes under callboard's rules: adapters, what drives them, and the table of what was seen.

`python -m callboard.actors.testing.runtimes` plays the same conversations on each of them and writes the table into
docs/other_runtimes.md. The rules are in `callboard.protocol.testing.observed`.
"""
