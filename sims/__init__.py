"""Plug-ins: simulated tasks of this project, on batched MuJoCo."""
