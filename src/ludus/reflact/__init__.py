"""ReflACT: train the skill document of an agent whose model stays the same.

Read `trainer.py` first: six stages and one loop. `stages/` has one module per stage, `records.py` the types,
`train_settings.py` the settings, `splits.py` the data, `proposers/` the base class for sources of edits, `report/` the
files that a run writes.
"""
