"""Learning rates over time, of the published trainers and others. Use after files of a model."""
