"""What training needs beside the algorithms: configuration, naming, logging, checkpoints."""
