from callboard import stream_sync

for text in stream_sync("Where is it wet?", model="openai/gpt-6-luna").texts():
    print(text, end="")
