"""The training modes (``configs.train.distribution``) and the experiment that they are given.

experiment.py        Experiment: command line, configuration, and the loop of train.py
synchronous.py       Synchronous: every rank runs the loop, with a DistributedOptimizer
saving.py            Saver: checkpoints at any step, written by a thread
best.py              the best epoch before a checkpoint
stopping.py          signals, and the agreement of the ranks on when to act on them
averaging.py         what ranks average: gradients, or the movement of local steps
pushing.py           what workers push to a server: gradients, or the movement of local steps
parameter_server.py  ParameterServer: one process serves, the workers run the loop
server.py            the server's process: evaluation, checkpoints
server_log.py        the server's files: metrics.jsonl, updates.csv, curves
"""
