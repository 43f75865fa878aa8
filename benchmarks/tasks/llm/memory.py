import llm

conversation = llm.get_model("gpt-6-sol").conversation()
print(conversation.prompt("I am Ada."))
print(conversation.prompt("Who am I?"))
