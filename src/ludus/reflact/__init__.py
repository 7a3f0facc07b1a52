"""ReflACT: training in words. The skill document of a frozen agent is trained with the discipline of an optimizer.

Read `train.py` first: six stages and one loop. `records.py` has the nouns, `settings.py` the options, `proposer.py` the
seam for other sources of ideas, `data.py` the splits.
"""
