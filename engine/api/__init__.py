"""The HTTP API, in OpenAI's shapes. Nothing is accepted and ignored: what is not supported is a clear 400."""
