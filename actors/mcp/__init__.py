"""The Model Context Protocol: tools of other programs as ours (the client), ours for other programs (the server).

The client: `mcp_servers` says which servers there are; `server_actor` owns the connection to one of them, which runs on
a thread of its own (`server_thread`, `server_connection`); `server_link` is what the tools of a server (`remote_tools`)
reach it by. What imports the official SDK `mcp`, which takes 0.8 s, is loaded on that thread.

The server, `callboard mcp`: `serving` has the two ways to it (pipes, HTTP), `tool_server` says what a client is shown
and how its calls are run and asked about, `mcp_caller` is the client that has called, for tools that ask it something
(`callers.caller()`). All but `callers` import the SDK, so they are loaded only by that command.
"""
