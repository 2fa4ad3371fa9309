"""A trained pair and larger shapes, timed on one device."""
