import llm

conversation = llm.get_model("gpt-6-luna").conversation()
print(conversation.prompt("I am Ada."))
print(conversation.prompt("Who am I?"))
