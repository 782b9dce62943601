"""The application around the library: command line, configuration, training modes, logs."""
