from callboard import Conversation, ask_sync

conversation = Conversation()
print(ask_sync("I am Ada.", model="openai/gpt-6-luna", conversation=conversation))
print(ask_sync("Who am I?", model="openai/gpt-6-luna", conversation=conversation))
