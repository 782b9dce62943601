"""A density of up to 10 % per layer: the default of LAGS, as a file to be named."""
