"""What may run: how calls are judged, what the owner has answered for always, and which workspaces are trusted."""
