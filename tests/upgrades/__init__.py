"""The upgrade matrix: kinds of change between two starts of an application, and what comes of its positions and its
state."""
