"""The edges: names and shapes of systems that came before, each known to one file here and nowhere else."""
