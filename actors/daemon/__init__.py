"""The daemon: runtimes behind HTTP. `callboard serve` runs it; the extra `daemon` has what it needs."""
