"""Dense momentum SGD. The default as well: this file is there to name it in a table."""
