import sys
from pathlib import Path

found = Path("/app/longest.txt")
wanted = "whoever opens the cellar has to write the time into the green book"
sys.exit(not (found.is_file() and found.read_text().strip("\n") == wanted))
