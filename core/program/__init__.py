"""The inert program: its builder, checks and parts, and its fingerprint, on which saved positions and state depend."""
