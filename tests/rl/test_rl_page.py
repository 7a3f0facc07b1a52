"""The page of an RL run."""

from tests.rl.test_rl_tables import START, STEP

from ludus.rl.rl_page import make_reward_curve, render_rl_page


def test_the_page_has_the_curve_the_steps_and_the_facts():
    page = render_rl_page("a run", {"environment": "<parcels>"}, [START, STEP]).decode()
    assert "<svg" in page and "&lt;parcels&gt;" in page and "<script" not in page
    for words in ("0.500", "held out: validation", "at first 0.250", "step"):
        assert words in page


def test_the_curve_has_rewards_and_evaluations():
    curve = make_reward_curve([START, STEP])
    assert curve.train == ((3, 0.5),)
    assert curve.current == ((0, 0.25), (3, 0.75))
    assert [dot.step for dot in curve.dots] == [0, 3]
    assert curve.steps == 3
    assert render_rl_page("nothing yet", {}, [])
