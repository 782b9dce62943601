"""The optimal grouping for the measured times: the default of OMGS, as a file to be named."""
