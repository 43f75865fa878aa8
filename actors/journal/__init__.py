"""The journal: what happens to requests, written before it is acted on, so that a process may die at any moment.

`journal_records` are the values that are written and read, `journal_store` what a database must do for them.
"""
