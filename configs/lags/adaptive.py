"""Up to 10 % of a layer. The default of LAGS: this file is there to name it."""
