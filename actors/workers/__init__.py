"""Workers: the actors that run tool calls, in a child process, on an event loop or on a thread."""
