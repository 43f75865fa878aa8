"""Google's generateContent, on the Gemini API and on Vertex AI."""
