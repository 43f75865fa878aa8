"""The Model Context Protocol: tools of other programs as ours (the client), through the official SDK `mcp`.

`mcp_servers` says which servers there are; `server_actor` owns the connection to one of them, which runs on a thread
of its own (`server_thread`, `server_connection`); `server_link` is what the tools of a server (`remote_tools`) reach
it by. What imports the SDK, which takes 0.8 s, is loaded on that thread.
"""
