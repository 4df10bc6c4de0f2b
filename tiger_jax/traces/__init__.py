"""Pictures of decoding: what the router saw, what was drafted, what was accepted."""
