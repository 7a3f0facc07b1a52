"""The files of a training run for people: skills, records, a page with the score curve."""
