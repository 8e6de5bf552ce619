"""One file per task; each is installed by one line under the entry point group 'embodied.tasks'."""
