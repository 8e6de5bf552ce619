"""Acting in environments: collecting, evaluating."""
