import llm

for text in llm.get_model("gpt-6-luna").prompt("Where is it wet?"):
    print(text, end="")
