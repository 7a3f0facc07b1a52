#!/bin/bash
cat /app/notes/*.txt | awk 'length > length(best) { best = $0 } END { print best }' >/app/longest.txt
