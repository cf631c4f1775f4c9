"""The agent's part: jobs ask on a socket, and the agent asks the servers for them."""
