"""The command line. It stands on `callboard.actors` and nothing else."""
