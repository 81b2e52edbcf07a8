"""The inert program: how it is built and checked, what it is made of, and what saved positions and state depend on."""
