"""An engine behind HTTP, in the words of OpenAI's interface."""
