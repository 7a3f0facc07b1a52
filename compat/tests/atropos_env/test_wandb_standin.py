"""Files use `wandb` with logging off, and without the package."""

from ludus.compat.atropos_env.wandb_standin import make_wandb


def test_tables_keep_their_rows_and_everything_else_does_nothing():
    wandb = make_wandb()
    table = wandb.Table(columns=["a", "b"], data=[(1, 2)])
    table.add_data(3, 4)
    assert (table.columns, table.data) == (["a", "b"], [[1, 2], [3, 4]])
    assert wandb.run is None  # files ask whether a run is open
    wandb.init(project="x").log({"a": 1}, step=2)
    wandb.config.update({"a": 1})
    wandb.Image("a.png", caption="c")
    assert not hasattr(wandb, "__wrapped__")
    assert isinstance(wandb.Settings, type)
