"""Forms of a step that are compiled and compared: sizes that fit, the fastest form."""
