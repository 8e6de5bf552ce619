"""Plug-ins: simulated tasks of this project, on batched MuJoCo.

Importing this package registers every installed task with Gymnasium, as `embodied/<task>-v0`.
"""

from __future__ import annotations

import gymnasium

from .. import plugins

for _task in plugins.names("embodied.tasks"):
    gymnasium.register(
        id=f"embodied/{_task}-v0",
        entry_point="embodied.sims.single:TabletopEnv",
        vector_entry_point="embodied.sims.single:make_vector",
        kwargs={"tasks": (_task,)},
    )
