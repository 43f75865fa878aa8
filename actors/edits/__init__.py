"""Edits in two phases: a tool call stages a proposal, an approval applies it."""
