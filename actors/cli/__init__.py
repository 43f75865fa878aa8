"""The command line: one module a command. It runs requests by the Runtime, as any other program does.

Exit status: 0 done; 1 it failed (the model, the network, the index); 2 usage error; 130 Ctrl-C.
"""

DONE, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130
