"""What people see on a terminal. Nothing here decides or records anything.

For scripts of your own: `print_summary` for the numbers of a run, `print_groups` for a line per task, `print_rollout`
for a transcript, and `ProgressBar` as the `on_rollout` of a batch.
"""

from ludus.batch.run_tables import ProgressBar, print_groups, print_summary
from ludus.command.rollout_text import print_rollout

__all__ = ["ProgressBar", "print_groups", "print_rollout", "print_summary"]
