"""Five LSTM layers of 800 units in both directions, 54.8 M parameters."""
