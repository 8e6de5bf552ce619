"""What each task calls done, how it starts, and how several share one environment."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from embodied import plugins
from embodied.sims import scene, tabletop
from embodied.sims.scene import HALF_HEIGHT, Task, View
from embodied.sims.tasks.lift import Lift
from embodied.sims.tasks.place import Place
from embodied.sims.tasks.push import Push
from embodied.sims.tasks.reach import Reach

N = 64
ALL = np.arange(N)


def view(**changes: object) -> View:
    """One world: object 1 is named and stands at (.2, 0), the tip far from it, the goal at (.2, .1)."""
    objects = np.zeros((1, 3, 4))
    objects[0, :, :2] = [[0.2, 0.1], [0.2, 0.0], [0.2, -0.1]]
    objects[0, :, 2] = HALF_HEIGHT
    plain = View(
        joints=np.zeros((1, 5)),
        opening=np.array([0.5]),
        tip=np.array([[0.2, 0.0, 0.2]]),
        rotation=np.eye(3)[None],
        command=np.zeros((1, 6)),
        objects=objects,
        speed=np.zeros((1, 3)),
        named=np.array([1]),
        goal=np.array([[0.2, 0.1]]),
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


def moved(x: float, y: float, z: float = 0.0) -> np.ndarray:
    objects = view().objects.copy()
    objects[0, 1, :3] = x, y, HALF_HEIGHT + z
    return objects


@pytest.mark.parametrize(
    ("task", "world", "done"),
    [
        (Reach(), view(tip=np.array([[0.2, 0.0, 2 * HALF_HEIGHT + 0.024]])), True),
        (Reach(), view(tip=np.array([[0.2, 0.0, 2 * HALF_HEIGHT + 0.026]])), False),
        (Reach(), view(tip=np.array([[0.2, 0.1, 2 * HALF_HEIGHT]])), False),  # over another object
        (Push(), view(objects=moved(0.2, 0.071)), True),
        (Push(), view(objects=moved(0.2, 0.069)), False),
        (Lift(), view(objects=moved(0.2, 0.0, 0.051)), True),
        (Lift(), view(objects=moved(0.2, 0.0, 0.049)), False),
        (Place(), view(objects=moved(0.239, 0.061)), True),
        (Place(), view(objects=moved(0.2, 0.059)), False),  # outside
        (Place(), view(objects=moved(0.2, 0.1, 0.01)), False),  # in the air
        (Place(), view(objects=moved(0.2, 0.1), opening=np.array([0.2])), False),  # not let go
        (Place(), view(objects=moved(0.2, 0.1), speed=np.full((1, 3), 0.1)), False),  # not at rest
    ],
)
def test_done_is_what_the_instruction_says(task: Task, world: View, done: bool) -> None:
    assert task.achieved(world)[0] == done


@pytest.mark.parametrize("name", plugins.names("embodied.tasks"))
def test_starts_are_varied_and_far_from_each_other(name: str) -> None:
    env = tabletop.make([name], N)
    env.reset(seed=0)
    seen = env._view(ALL)
    for i, j in ((0, 1), (0, 2), (1, 2)):
        gaps = np.linalg.norm(seen.objects[:, i, :2] - seen.objects[:, j, :2], axis=1)
        assert gaps.min() >= scene.CLEARANCE
    assert seen.tip[:, 2].min() > 0.06 and seen.tip[:, 1].std() > 0.03
    assert set(seen.named) == {0, 1, 2}
    assert len(set(env._seen.prompt)) > 6
    words = {word for prompt in env._seen.prompt for word in prompt.split()}
    assert set(scene.COLOURS) <= words and set(scene.SHAPES) <= words


@pytest.mark.parametrize("name", plugins.names("embodied.tasks"))
def test_every_instruction_names_one_object(name: str) -> None:
    env = tabletop.make([name], N)
    env.reset(seed=0)
    for lane in ALL:
        colours = [list(scene.COLOURS)[int(c)] for c in env.scene[lane, scene.COLOUR]]
        matching = [
            i for i in range(3) if colours[i] in env._seen.prompt[lane] and scene.SHAPES[i] in env._seen.prompt[lane]
        ]
        assert matching == [int(env.scene[lane, scene.NAMED])]


def test_the_control_names_another_object_in_the_same_world() -> None:
    honest, control = tabletop.make(["reach", "push"], N), tabletop.make(["reach", "push"], N, misname=True)
    for env in (honest, control):
        env.reset(seed=0)
    np.testing.assert_array_equal(honest.snapshot(ALL), control.snapshot(ALL))
    for lane in ALL:
        row = control.scene[lane]
        named = int(row[scene.NAMED])
        other = row.copy()
        other[scene.NAMED] = (named + 1) % 3
        task = control.tasks[int(row[scene.TASK])]
        assert control._seen.prompt[lane] == scene.instruction(task, other) != honest._seen.prompt[lane]
        assert control.geom_of(ALL[[lane]]) == honest.geom_of(ALL[[lane]])


def test_a_mark_lies_ahead_of_a_free_way() -> None:
    env = tabletop.make(["push"], N)
    env.reset(seed=0)
    seen = env._view(ALL)
    way = seen.goal - seen.target[:, :2]
    distance = np.linalg.norm(way, axis=1)
    assert (distance >= 0.07).all() and (distance <= 0.10).all()
    for lane in ALL:
        others = np.delete(seen.objects[lane, :, :2], seen.named[lane], axis=0)
        steps = seen.target[lane, :2] + np.linspace(0, 1, 20)[:, None] * way[lane]
        assert np.linalg.norm(others[:, None] - steps, axis=2).min() > 0.04


def test_a_knocked_object_can_still_be_pushed_to_the_mark() -> None:
    """Objects moved sideways by up to 4 cm in the middle of the push: the expert comes round again."""
    env = tabletop.make(["push"], N)
    env.reset(seed=0)
    live, knocked, solved = ALL, np.zeros(N, bool), 0
    rng = np.random.default_rng(0)
    for _ in range(env.time_limit):
        result = env.step_chunk(env.expert(live), live)
        solved += int(result.success.sum())
        live = live[~(result.terminated | result.truncated)]
        seen = env._view(ALL)
        left = np.linalg.norm(seen.goal - seen.target[:, :2], axis=1)
        now = ~knocked & (left < 0.06) & np.isin(ALL, live)
        for lane in np.flatnonzero(now):
            way = (seen.goal - seen.target[:, :2])[lane] / left[lane]
            column = scene.ARM_DOFS + 4 * seen.named[lane]
            env.engine.qpos(env.engine.state)[lane, column : column + 2] += (
                rng.uniform(-0.04, 0.04) * way[::-1] * [-1, 1]
            )
        knocked |= now
        if not len(live):
            break
    assert knocked.mean() > 0.8
    assert solved >= 0.9 * N


def test_bins_lie_on_either_side_and_either_may_be_named() -> None:
    env = tabletop.make(["place"], N)
    env.reset(seed=0)
    bins = env.scene[:, scene.GOALS].reshape(N, 2, 2)
    assert (bins[:, 0, 1] * bins[:, 1, 1] < 0).all()
    assert 0.2 < (bins[:, 0, 1] > 0).mean() < 0.8
    wanted = env.scene[:, scene.WANTED].astype(int)
    assert set(wanted) == {0, 1}
    np.testing.assert_array_equal(env._view(ALL).goal, bins[ALL, wanted])
    assert all(("white" in p) == (w == 0) for p, w in zip(env._seen.prompt, wanted, strict=True))


# -------------------------------------------------------------------- mixtures


@pytest.fixture
def mixed() -> tabletop.Tabletop:
    env = tabletop.make(["reach", "push", "lift"], 6)
    env.reset(seed=5)
    return env


def test_tasks_take_turns_by_seed_and_episode(mixed: tabletop.Tabletop) -> None:
    """Episode e of seed s plays task (s + e) mod 3: every quota of 3 episodes a lane plays each task equally often."""
    names = ["reach", "push", "lift"]
    for episode in range(3):
        assert mixed.task_names(np.arange(6)) == [names[(5 + lane + episode) % 3] for lane in range(6)]
        mixed.reset()


def test_each_task_of_a_mixture_keeps_its_own_time_limit(mixed: tabletop.Tabletop) -> None:
    still = np.zeros((6, 80, 6), np.float32)
    result = mixed.step_chunk(still, np.arange(6))
    limits = {"reach": Reach.time_limit, "push": Push.time_limit, "lift": Lift.time_limit}
    np.testing.assert_array_equal(result.executed, [limits[name] for name in mixed.task_names(np.arange(6))])
    assert mixed.time_limit == max(limits.values())


def test_a_mixture_tells_state_policies_the_task_and_the_goal(mixed: tabletop.Tabletop) -> None:
    names = mixed.embodiment.state_names
    state = mixed.reset(seed=5)[0]["state"]
    played = [names[i].removeprefix("task.") for i in np.flatnonzero(np.char.startswith(names, "task."))]
    assert played == ["reach", "push", "lift"]
    onehot = state[:, np.char.startswith(names, "task.")]
    assert [played[i] for i in onehot.argmax(1)] == mixed.task_names(np.arange(6))
    np.testing.assert_array_equal(onehot.sum(1), 1)
    seen = mixed._view(np.arange(6))
    pushing = np.array(mixed.task_names(np.arange(6))) == "push"
    delta = state[:, [names.index("goal.dx"), names.index("goal.dy")]]
    np.testing.assert_allclose(delta[pushing], (seen.goal - seen.target[:, :2])[pushing], atol=1e-6)
    np.testing.assert_array_equal(delta[~pushing], 0)


def test_experts_of_a_mixture_solve_their_own_tasks() -> None:
    env = tabletop.make(["reach", "push", "lift", "place"], N)
    env.reset(seed=0)
    live, solved = ALL, np.zeros(N, bool)
    while len(live):
        result = env.step_chunk(env.expert(live), live)
        solved[live] |= result.success
        live = live[~(result.terminated | result.truncated)]
    assert solved.mean() >= 0.95


def test_a_mixture_reaches_the_same_world_as_its_task_alone(mixed: tabletop.Tabletop) -> None:
    """Seed 7 plays push in the mixture; that world is push's own world of seed 7."""
    alone = tabletop.make(["push"], 1)
    alone.reset(seed=7)
    np.testing.assert_array_equal(alone.engine.state[0], mixed.engine.state[2])
    assert alone._seen.prompt[0] == mixed._seen.prompt[2]


def test_a_state_without_goals_has_no_goal_entries() -> None:
    make: Callable[[list[str]], tuple[str, ...]] = lambda tasks: tabletop.make(tasks, 1).embodiment.state_names  # noqa: E731
    assert not [name for name in make(["reach"]) if name.startswith(("goal", "task"))]
    assert [name for name in make(["push"]) if name.startswith("goal")] == ["goal.dx", "goal.dy"]
