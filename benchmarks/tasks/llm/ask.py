import llm

print(llm.get_model("gpt-6-luna").prompt("Where is it wet?"))
