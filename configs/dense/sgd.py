"""Dense momentum SGD: the default, as a file to be named in tables."""
