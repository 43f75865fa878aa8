from callboard import stream_sync

for text in stream_sync("Where does it rain?", model="openai/gpt-6-sol").texts():
    print(text, end="")
