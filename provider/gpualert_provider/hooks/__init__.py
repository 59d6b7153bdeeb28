"""Ways to reach a GPU host: what a connection means, and sessions that speak the protocol over it."""
