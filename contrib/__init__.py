"""Things that use only the public door. Imports anything public, and is imported by nothing."""
