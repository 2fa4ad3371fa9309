"""Server with OpenAI's interface, installed by the extra `[serve]`."""
