"""The optimal grouping for the measured times: the default, as a file to be named."""
