import llm

for text in llm.get_model("gpt-6-sol").prompt("Where does it rain?"):
    print(text, end="")
