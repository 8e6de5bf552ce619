"""Improve flow-matching vision-language-action policies by reinforcement learning: in simulation, on robots, from logs."""
