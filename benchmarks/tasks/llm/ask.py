import llm

print(llm.get_model("gpt-6-sol").prompt("Where does it rain?"))
