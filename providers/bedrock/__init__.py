"""Amazon Bedrock: the Converse API, its binary event stream, and the signatures of its requests."""
