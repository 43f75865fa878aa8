"""Counts, times, log records and spans of what runs."""
