#!/bin/bash
tail -n +2 /app/sales.csv | awk -F, '{ sum[$2] += $3 } END { for (p in sum) print p "," sum[p] }' | sort >/app/totals.csv
