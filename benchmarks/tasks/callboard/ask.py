from callboard import ask_sync

print(ask_sync("Where does it rain?", model="openai/gpt-6-sol"))
