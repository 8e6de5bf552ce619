"""The command line: the only place that knows Hydra and composes plug-ins."""
