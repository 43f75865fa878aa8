"""Tool calls: the registry of tools, the ledger of calls, approvals, and the dispatcher that owns them."""
