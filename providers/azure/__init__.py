"""Azure OpenAI: the APIs of OpenAI under Azure's addresses and credentials."""
