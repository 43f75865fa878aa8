from callboard import ask_sync

print(ask_sync("Where is it wet?", model="openai/gpt-6-luna"))
