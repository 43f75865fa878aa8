"""The command line: one module a command. It runs requests by the Runtime, as any other program does."""
