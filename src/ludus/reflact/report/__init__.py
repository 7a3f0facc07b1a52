"""What a training run leaves behind for people: files, a page, a curve."""
