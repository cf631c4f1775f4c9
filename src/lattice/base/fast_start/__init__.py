"""Hand-written parts that make a command start fast.

A person waits for every command. The libraries that do the same (`http.client`, `httpx`,
`websockets`, `msgspec`, `click`) take longer to import than a whole command may take. Each module
here does only what commands need, and is strict and bounded. Each is tested against a full library:
HTTP/1.1 against h11, WebSocket against `websockets`, arguments against click.
"""
