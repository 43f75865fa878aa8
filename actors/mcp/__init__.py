"""The Model Context Protocol: tools of other programs as ours (the client), ours for other programs (the server).

The server, `callboard mcp`: `serving` has the two ways to it (pipes, HTTP), `tool_server` says what a client is shown
and how its calls are run and asked about, `callers` is the client that has called, for tools that ask it something. All
import the official SDK `mcp` (0.8 s), so they are loaded only by that command.
"""
